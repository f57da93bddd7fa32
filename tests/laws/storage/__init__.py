"""The laws on the storage layouts: every layout agrees with the Boolean mask."""
