"""Reports: self-contained HTML files with tables and figures."""
