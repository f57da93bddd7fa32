"""One denominator in other people's trainers: few lines for each, and their own loops."""

__all__: list[str] = []
