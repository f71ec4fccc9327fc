// Search in pages that were opened as files: a browser refuses workers and requests there, but not scripts.
// The index is a script, and is searched in the page itself. Stands in for MkDocs' worker.
var searchWorker = {
  documents: {},
  index: null,
  postMessage: function (message) {
    displayResults(this.index.search(message.query).map(this.found, this));
  },
  found: function (result) {
    var page = this.documents[result.ref];
    return { location: page.location, title: page.title, summary: page.text.substring(0, 200) };
  },
  start: function (data) {
    var documents = this.documents;
    min_search_length = data.config.min_search_length - 1;
    lunr.tokenizer.separator = new RegExp(data.config.separator);
    this.index = lunr(function () {
      this.ref("location");
      this.field("title", { boost: 10 });
      this.field("text");
      data.docs.forEach(function (page) {
        documents[page.location] = page;
        this.add(page);
      }, this);
    });
    initSearch();
  },
};
["search/lunr.js", "search/search_index.js"].forEach(function (name) {
  var script = document.createElement("script");
  script.async = false; // in this order
  script.src = joinUrl(base_url, name);
  document.head.appendChild(script);
});
