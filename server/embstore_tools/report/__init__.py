"""The report of a training run: one HTML file, drawn from the run's history.

    reading   a run's file, checked; rates between its samples
    charts    lines and stacked areas as inline SVG
    page      the page, and its parts

The file needs nothing else: no script, no font, no request. It is light or dark as its reader's
system is. Names of tables and sessions are the run's own, so all text is escaped.
"""
