"""Shows a result: `tables` and `verdict` say it, `page` and `plots` make a page, text and CSV."""
