//! The gateway's work on plain events: everything here has a twin in Python that gives the same bytes.

mod document;
mod faults;
mod identify;
mod json;
mod key_filter;
mod record_batch;
mod record_reader;
mod tuples;

use pyo3::prelude::*;

#[pymodule]
mod gateway_native {
    #[pymodule_export]
    use super::document::{Deployment, Document, PlainFields, Request};
    #[pymodule_export]
    use super::faults::{faults, provoke};
    #[pymodule_export]
    use super::key_filter::add_keys;
    #[pymodule_export]
    use super::record_batch::encode_records;
    #[pymodule_export]
    use super::record_reader::{Decoder, Fetched, Records};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::faults::count_panics();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
