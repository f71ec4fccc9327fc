"""Which component wrote what: the residual stream as a sum of the components' writes."""
