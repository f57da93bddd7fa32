from tests.doctor.across_ranks import coupled, denominators, exchanges  # noqa: F401
