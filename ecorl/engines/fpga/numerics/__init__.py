"""The kernels' integer formats and the quantisation of weights into them."""
