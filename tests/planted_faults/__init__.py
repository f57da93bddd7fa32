"""Do the tests notice? Known faults are planted in a copy of the tree, one at a time, and the light run is asked."""
