"""Shows a result: `tables` and `verdict` say it, `text` prints it, `page` and `plots` draw it.

`csv_file` has a row for each run.
"""
