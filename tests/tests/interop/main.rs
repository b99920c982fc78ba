//! The same requests to Debian's Go plugins and to ours.
mod bridge;
mod differences;
