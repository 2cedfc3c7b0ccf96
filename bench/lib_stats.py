"""Medians, their intervals, and tables. No benchmark by itself."""
import math
import statistics

median = statistics.median


def median_interval(values, confidence=0.95):
    """Interval of the median by order statistics: no assumption about the distribution. (low, high, confidence reached); with fewer than six values 95 % is not to be had, and the
    interval is the whole range."""
    ordered = sorted(values)
    count = len(ordered)
    low = 0
    # The interval [low, high] of sorted values misses the median with twice the binomial tail below `low`.
    while low + 1 < count / 2 and 1 - 2 * _tail(count, low + 1) >= confidence:
        low += 1
    return ordered[low], ordered[count - 1 - low], 1 - 2 * _tail(count, low)


def _tail(count, below):
    return sum(math.comb(count, k) for k in range(below + 1)) / 2**count


def spread(values):
    """Half the distance between the quartiles, relative to the median."""
    if len(values) < 4:
        return (max(values) - min(values)) / 2 / median(values) if median(values) else 0.0
    quartiles = statistics.quantiles(values, n=4)
    return (quartiles[2] - quartiles[0]) / 2 / median(values) if median(values) else 0.0


def print_table(headers, rows, markdown=False):
    """The first column is text, the others are figures (given as text)."""
    rows = [[str(cell) for cell in row] for row in rows]
    if markdown:
        print("| " + " | ".join(headers) + " |")
        print("| --- |" + " ---: |" * (len(headers) - 1))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        return
    widths = [max(len(row[i]) for row in [headers] + rows) for i in range(len(headers))]
    for row in [headers] + rows:
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))).rstrip())
