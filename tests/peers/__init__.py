"""Operations of other packages on the same data and masks as ours: a differential test of each that knows holes."""
