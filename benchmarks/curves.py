"""Curves of several programs' runs of one recipe as one table: what cifar10.py and multi30k.py share."""


def print_table(curves, titles, formats):
    """`curves`: name -> rows of hours and values; a title and a format for each value. A row of the table is an epoch."""
    names = " | ".join(f"{name}: hours | " + " | ".join(titles) for name in curves)
    print(f"| epochs | {names} |\n|---|" + "---|" * len(curves) * (1 + len(titles)))
    formats = ["{:.2f}", *formats]
    for epoch in range(max(map(len, curves.values()))):
        cells = []
        for curve in curves.values():
            cells += [f.format(x) for f, x in zip(formats, curve[epoch])] if epoch < len(curve) else [""] * len(formats)
        print(f"| {epoch + 1} | " + " | ".join(cells) + " |")
