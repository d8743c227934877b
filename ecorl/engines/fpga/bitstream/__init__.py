"""Bitstreams: building them, their manifests, the xclbin format, and the reports of the tools."""
