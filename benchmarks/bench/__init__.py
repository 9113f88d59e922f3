"""How it is measured: peers in processes of their own, taking turns."""
