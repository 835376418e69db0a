"""The report of a training run: one HTML file, drawn from the run's history.

    reading   reads and checks a run's file; computes rates between its samples
    charts    lines and stacked areas as inline SVG
    page      the page, and its parts

The HTML file needs no script, no font and no other file. It follows the light or dark theme of its
reader's browser. Names of tables and sessions are data of the run, so all text is escaped.
"""
