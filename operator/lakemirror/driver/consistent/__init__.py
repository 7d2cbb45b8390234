"""One state of the source in several mirrors (docs/consistent-reads.md): pure functions on plain values.

Positions are sequences (`lakemirror.driver.sequence`) as hexadecimal digits, which compare in the same order.
"""
