"""Tools that FairScale called experimental, at the places where it had them."""
