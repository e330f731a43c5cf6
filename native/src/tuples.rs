//! Makes the named tuples of `dedupe.model.types` from all their fields.

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Returns an instance of a named tuple that has as many fields.
pub fn new_tuple<'py, const COUNT: usize>(
    py: Python<'py>,
    class: &Py<PyType>,
    fields: [Py<PyAny>; COUNT],
) -> PyResult<Bound<'py, PyAny>> {
    let class = class.as_ptr().cast::<ffi::PyTypeObject>();
    let count = ffi::Py_ssize_t::try_from(COUNT)?;
    // SAFETY: the class is a heap type that inherits tuple's layout and allocator, which takes the number of items.
    // PyTuple_SetItem takes the reference of each field, and the tuple is new.
    unsafe {
        let slot = ffi::PyType_GetSlot(class, ffi::Py_tp_alloc);
        if slot.is_null() {
            return Err(PyTypeError::new_err("the class has no allocator"));
        }
        let allocate = std::mem::transmute::<*mut std::ffi::c_void, ffi::allocfunc>(slot);
        let tuple = Bound::from_owned_ptr_or_err(py, allocate(class, count))?;
        for (place, field) in (0..).zip(fields) {
            if ffi::PyTuple_SetItem(tuple.as_ptr(), place, field.into_ptr()) != 0 {
                return Err(PyErr::fetch(py));
            }
        }
        Ok(tuple)
    }
}
