"""Math answer checking."""
