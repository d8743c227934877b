"""HTML pages: the templates' renderer, the style and the plots that all reports share."""
