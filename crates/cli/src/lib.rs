//! The commands of the podwire program.
