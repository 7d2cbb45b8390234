"""The parts of the benchmark, each a module.

A part has `run(options)`, which returns figures that JSON can hold, `text(figures)`, and `plots(figures)`,
which returns SVG by name.
"""
