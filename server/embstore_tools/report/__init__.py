"""The report of a training run: one HTML file, drawn from the run's history.

    reading   a run's file, checked; rates between its samples
    charts    lines and stacked areas as inline SVG
    page      the page, and its parts

The file needs no other file: no script, no font, no request. It follows its reader's light or dark
theme. Names of tables and sessions come from the run, so all text is escaped.
"""
