"""What each tensor's type costs and loses, and which types to choose for a target."""
