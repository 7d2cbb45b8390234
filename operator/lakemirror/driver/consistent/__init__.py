"""One state of the source in several mirrors (docs/consistent-reads.md): plain functions over plain values.

Positions are sequences (`lakemirror.driver.sequence`) as hexadecimal digits, which compare as they do.
"""
