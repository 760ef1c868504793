"""What the weights of a law alone say: forms, spectra and labels, through matrices of the size of a head."""
