"""What is measured: a module each, with `run(options)`, which gives figures as JSON has them, `text(figures)`
and `plots(figures)`, SVG by name.
"""
