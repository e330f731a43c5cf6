//! Bits of keys in the blocked Bloom filter of `dedupe.storage.rocksdb.bloom`.

use crate::faults::caught;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

const KEY_BYTES: usize = 16;
const MASK_NUMBER: u128 = 4_096 - 1;

/// Adds keys: of each the first 32 bits select a word, and the last 12 bits a mask whose bits it sets there.
///
/// Returns None, and may have added some, if `words` or `masks` are no memory of 32-bit words, or a key is no key.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub fn add_keys(py: Python<'_>, words: PyBuffer<u32>, masks: PyBuffer<u32>, keys: &Bound<'_, PyList>) -> Option<bool> {
    caught(|| {
        let words = words.as_mut_slice(py).ok_or_else(|| PyBufferError::new_err("words"))?;
        let masks = masks.as_slice(py).ok_or_else(|| PyBufferError::new_err("masks"))?;
        for key in keys.iter() {
            let key = key.cast::<PyBytes>()?.as_bytes();
            let Ok(key) = <[u8; KEY_BYTES]>::try_from(key) else { return Ok(None) };
            let bits = u128::from_be_bytes(key);
            let place = ((bits >> 96) * words.len() as u128) >> 32;
            let word = &words[usize::try_from(place)?];
            let mask = masks[usize::try_from(bits & MASK_NUMBER)?].get();
            word.set(word.get() | mask);
        }
        Ok(Some(true))
    })
}
