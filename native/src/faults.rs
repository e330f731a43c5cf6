//! Faults: panics, and errors that no input explains. Each is counted, and what it was to answer is None.

use pyo3::prelude::*;
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Their number since the process began, and what the last one was.
static FAULTS: Mutex<(u64, String)> = Mutex::new((0, String::new()));
static IS_PROVOKED: AtomicBool = AtomicBool::new(false);

/// Returns the number of faults since the process began, and what the last one was.
#[pyfunction]
pub fn faults() -> (u64, String) {
    FAULTS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Lets the next piece of work panic, for tests.
#[pyfunction]
pub fn provoke() {
    IS_PROVOKED.store(true, Ordering::Relaxed);
}

/// Has panics counted, with their place, instead of printed.
pub fn count_panics() {
    set_hook(Box::new(|panic| count(panic.to_string())));
}

/// Returns what work returns; None if that is an error, or it panics.
pub fn caught<T>(work: impl FnOnce() -> PyResult<Option<T>>) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        assert!(!IS_PROVOKED.swap(false, Ordering::Relaxed), "provoked");
        work()
    }));
    match result {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            count(error.to_string());
            None
        }
        Err(_) => None, // the hook has counted it
    }
}

fn count(what: String) {
    let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    *faults = (faults.0 + 1, what);
}
