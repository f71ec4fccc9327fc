"""The claims of `coupling`: rank, rate, spectrum, order of the inputs, readable attention."""
