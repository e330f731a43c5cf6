//! Reads record batches of Kafka's format 2 with records of plain events, in `dedupe.model.record`'s format v1.
//!
//! Whatever differs from what `encode` writes is None here, and left to the Python code.

use crate::faults::caught;
use crate::tuples::new_tuple;
use blake2b_simd::many::{hash_many, HashManyJob};
use blake2b_simd::Params;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyType};
use std::ops::Range;

const HEAD_BYTES: usize = 61;
const LENGTH_AT: usize = 8;
const LENGTH_FROM: usize = 12;
const MAGIC_AT: usize = 16;
const CRC_AT: usize = 17;
const CRC_FROM: usize = 21;
const LAST_DELTA_AT: usize = 23;
const TIMESTAMP_AT: usize = 27;
const COUNT_AT: usize = 57;
const SOURCE: &[u8] = b"source";
const GATEWAY: &[u8] = b"gw";
const KEY_BYTES: usize = 16;
const GW_CHECKSUM_AT: usize = 34;
const GW_BYTES: usize = 38;
const VERSION: u8 = 1;
/// Flags of a record: a checksum, and perhaps an assigned id or no idempotence.
const FLAG_CHECKSUM: u8 = 16;
const FLAGS_PLAIN: u8 = FLAG_CHECKSUM | 2 | 4;

type Part = Range<usize>;

/// A record within the bytes of a response.
struct Record {
    offset: i64,
    timestamp_ms: i64,
    id: Part,
    value: Part,
    source: Part,
    gw: Part,
}

/// The classes of what is made.
#[pyclass(frozen)]
pub struct Decoder {
    record: Py<PyType>,
    identity: Py<PyType>,
    checked: Py<PyType>,
    no_source: Py<PyBytes>,
    no_evicted: Py<PyAny>,
    names: [Py<PyString>; 2],
}

#[pymethods]
impl Decoder {
    /// The classes are `LogRecord`, `RecordIdentity` and `CheckedRecord`; then what the last two have by default.
    #[new]
    fn new(
        py: Python<'_>,
        record: Py<PyType>,
        identity: Py<PyType>,
        checked: Py<PyType>,
        no_evicted: Py<PyAny>,
        no_source: Py<PyBytes>,
    ) -> Self {
        let names = ["source", "gw"].map(|name| PyString::intern(py, name).unbind());
        Decoder { record, identity, checked, no_source, no_evicted, names }
    }

    /// Reads the whole record batches of a response, of which the records below `start` are left out.
    ///
    /// Returns None unless all are whole, with records of plain events alone.
    fn decode(slf: &Bound<'_, Self>, raw: &Bound<'_, PyBytes>, start: i64) -> Option<Fetched> {
        let bytes = raw.as_bytes();
        let (records, end) = caught(|| Ok(read_batches(bytes, start)))?;
        Some(Fetched { decoder: slf.clone().unbind(), raw: raw.clone().unbind(), records, position: start, end })
    }
}

/// The records of a response that are still to be taken.
#[pyclass]
pub struct Fetched {
    decoder: Py<Decoder>,
    raw: Py<PyBytes>,
    records: Vec<Record>,
    position: i64,
    end: i64,
}

#[pymethods]
impl Fetched {
    /// Takes the next records, at most `count`.
    fn take(&mut self, py: Python<'_>, count: usize) -> Records {
        let rest = self.records.split_off(count.min(self.records.len()));
        let records = std::mem::replace(&mut self.records, rest);
        self.position = match records.last() {
            Some(last) if records.len() == count => last.offset + 1,
            _ => self.end,
        };
        Records { decoder: self.decoder.clone_ref(py), raw: self.raw.clone_ref(py), records }
    }

    /// The offset behind what was taken.
    #[getter]
    fn next_fetch_offset(&self) -> i64 {
        self.position
    }
}

/// Records of plain events.
#[pyclass(frozen)]
pub struct Records {
    decoder: Py<Decoder>,
    raw: Py<PyBytes>,
    records: Vec<Record>,
}

#[pymethods]
impl Records {
    fn __len__(&self) -> usize {
        self.records.len()
    }

    /// The offset behind the last record; 0 without any.
    #[getter]
    fn end(&self) -> i64 {
        self.records.last().map_or(0, |record| record.offset + 1)
    }

    /// Returns each as a `LogRecord`.
    fn log_records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (decoder, raw) = (self.decoder.get(), self.raw.as_bytes(py));
        let bytes = |part: &Part| PyBytes::new(py, &raw[part.clone()]).into_any();
        let list = PyList::empty(py);
        for record in &self.records {
            let headers = PyList::empty(py);
            for (name, part) in decoder.names.iter().zip([&record.source, &record.gw]) {
                headers.append((name, bytes(part)))?;
            }
            let fields = [
                record.offset.into_pyobject(py)?.into_any().unbind(),
                record.timestamp_ms.into_pyobject(py)?.into_any().unbind(),
                bytes(&record.id).unbind(),
                bytes(&record.value).unbind(),
                headers.into_any().unbind(),
            ];
            list.append(new_tuple(py, &decoder.record, fields)?)?;
        }
        Ok(list)
    }

    /// Returns each as `RecordCheck.checked` does; None if that would raise for one, or one needs more of it.
    fn checked<'py>(
        &self,
        py: Python<'py>,
        secret: &[u8],
        partition: u64,
        partitions: u64,
    ) -> Option<Bound<'py, PyList>> {
        caught(|| {
            let raw = self.raw.as_bytes(py);
            if !are_sound(raw, &self.records, secret, partition, partitions) {
                return Ok(None);
            }
            self.identities(py).map(Some)
        })
    }
}

impl Records {
    /// Returns each as a `CheckedRecord`.
    fn identities<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (decoder, raw) = (self.decoder.get(), self.raw.as_bytes(py));
        let list = PyList::empty(py);
        let mut last_source: Option<(&[u8], Py<PyAny>)> = None;
        for record in &self.records {
            let source_bytes = &raw[record.source.clone()];
            let source = match &last_source {
                Some((bytes, source)) if *bytes == source_bytes => source.clone_ref(py),
                _ => PyString::from_bytes(py, source_bytes)?.into_any().unbind(),
            };
            last_source = Some((source_bytes, source.clone_ref(py)));
            let gw = &raw[record.gw.clone()];
            let identity = [
                PyBytes::new(py, &gw[2..18]).into_any().unbind(),
                PyBytes::new(py, &gw[18..26]).into_any().unbind(),
                u64_at(gw, 26).into_pyobject(py)?.into_any().unbind(),
                (gw[1] & !FLAG_CHECKSUM).into_pyobject(py)?.into_any().unbind(),
                source,
                PyString::from_bytes(py, &raw[record.id.clone()])?.into_any().unbind(),
                py.None(),
                decoder.no_evicted.clone_ref(py),
            ];
            let fields = [
                record.offset.into_pyobject(py)?.into_any().unbind(),
                record.timestamp_ms.into_pyobject(py)?.into_any().unbind(),
                new_tuple(py, &decoder.identity, identity)?.unbind(),
                py.None(),
                decoder.no_source.clone_ref(py).into_any(),
            ];
            list.append(new_tuple(py, &decoder.checked, fields)?)?;
        }
        Ok(list)
    }
}

/// Whether text, version, flags, checksum, key and partition of all are those of plain events of this deployment.
fn are_sound(raw: &[u8], records: &[Record], secret: &[u8], partition: u64, partitions: u64) -> bool {
    if secret.len() > 64 || partitions == 0 || !records.iter().all(|record| is_intact(raw, record)) {
        return false;
    }
    let mut params = Params::new();
    params.hash_length(KEY_BYTES).key(secret);
    let (mut input, mut ends) = (Vec::new(), vec![0]);
    for record in records {
        put_prefixed(&mut input, b"m");
        put_prefixed(&mut input, &raw[record.source.clone()]);
        input.extend_from_slice(&raw[record.id.clone()]);
        ends.push(input.len());
    }
    let mut jobs: Vec<_> = ends.windows(2).map(|ends| HashManyJob::new(&params, &input[ends[0]..ends[1]])).collect();
    hash_many(jobs.iter_mut());
    records.iter().zip(&jobs).all(|(record, job)| {
        let key = &raw[record.gw.start + 2..record.gw.start + 18];
        key == job.to_hash().as_bytes() && u64_at(key, 0) % partitions == partition
    })
}

/// Whether a record is text of a plain event with the right checksum.
fn is_intact(raw: &[u8], record: &Record) -> bool {
    let [source, id, gw, value] =
        [&record.source, &record.id, &record.gw, &record.value].map(|part| &raw[part.clone()]);
    let mut checksum = crc32fast::Hasher::new();
    for part in [source, id, &gw[..GW_CHECKSUM_AT], value] {
        checksum.update(part);
    }
    gw[0] == VERSION
        && gw[1] | FLAGS_PLAIN == FLAGS_PLAIN
        && gw[GW_CHECKSUM_AT..] == checksum.finalize().to_be_bytes()
        && simdutf8::basic::from_utf8(source).is_ok()
        && simdutf8::basic::from_utf8(id).is_ok()
}

fn put_prefixed(out: &mut Vec<u8>, part: &[u8]) {
    // A part of a record batch has less than 2 GiB.
    out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(part);
}

/// Reads the batches of a response; returns the records from `start` on and the offset behind the batches. What follows the last whole one is no part of it.
fn read_batches(raw: &[u8], start: i64) -> Option<(Vec<Record>, i64)> {
    let (mut records, mut at, mut end) = (Vec::new(), 0, None);
    while raw.len() - at >= LENGTH_FROM {
        let length = usize::try_from(i32_at(raw, at + LENGTH_AT)).ok()?;
        let batch_end = at + LENGTH_FROM + length;
        if batch_end > raw.len() {
            break;
        }
        let batch_start = i64_at(raw, at);
        if batch_start < end.unwrap_or(0) {
            return None;
        }
        let next = read_batch(raw, at..batch_end, batch_start, start, &mut records)?;
        if next <= start {
            return None; // it was not asked for
        }
        end = Some(next);
        at = batch_end;
    }
    Some((records, end?))
}

/// Reads one batch; returns the offset behind it.
fn read_batch(raw: &[u8], batch: Part, base: i64, start: i64, records: &mut Vec<Record>) -> Option<i64> {
    let head = raw.get(batch.start..batch.start + HEAD_BYTES)?;
    let crc = u32::from_be_bytes(head[CRC_AT..CRC_FROM].try_into().ok()?);
    // The attributes are 0: no compression, no transaction, no marker, and the writer's timestamps.
    if batch.len() < HEAD_BYTES
        || head[MAGIC_AT] != 2
        || head[CRC_FROM..LAST_DELTA_AT] != [0, 0]
        || crc32c::crc32c(&raw[batch.start + CRC_FROM..batch.end]) != crc
    {
        return None;
    }
    let last_delta = i64::from(i32_at(head, LAST_DELTA_AT));
    let end = base.checked_add(last_delta)?.checked_add(1)?;
    let count = i32_at(head, COUNT_AT);
    let mut cursor = Cursor { raw: &raw[..batch.end], at: batch.start + HEAD_BYTES };
    let mut next_delta = 0;
    for _ in 0..count {
        let (delta, record) = cursor.record(base, i64_at(head, TIMESTAMP_AT))?;
        if delta < next_delta || delta > last_delta {
            return None;
        }
        next_delta = delta + 1;
        if record.offset >= start {
            records.push(record);
        }
    }
    (count > 0 && cursor.at == batch.end).then_some(end)
}

struct Cursor<'a> {
    raw: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    /// Returns a record, and its offset within the batch.
    fn record(&mut self, base: i64, first_timestamp_ms: i64) -> Option<(i64, Record)> {
        let size = self.length()?;
        let end = self.at.checked_add(size)?;
        if *self.raw.get(self.at)? != 0 {
            return None; // attributes
        }
        self.at += 1;
        let timestamp_ms = first_timestamp_ms.checked_add(self.varint()?)?;
        let delta = self.varint()?;
        let (id, value) = (self.part()?, self.part()?);
        if self.varint()? != 2 || !self.is_next(SOURCE)? {
            return None;
        }
        let source = self.part()?;
        if !self.is_next(GATEWAY)? {
            return None;
        }
        let gw = self.part()?;
        let record = Record { offset: base.checked_add(delta)?, timestamp_ms, id, value, source, gw };
        (self.at == end && record.gw.len() == GW_BYTES).then_some((delta, record))
    }

    fn is_next(&mut self, name: &[u8]) -> Option<bool> {
        let part = self.part()?;
        Some(&self.raw[part] == name)
    }

    /// Returns the place of bytes that are not null.
    fn part(&mut self) -> Option<Part> {
        let length = self.length()?;
        let part = self.at..self.at.checked_add(length)?;
        self.raw.get(part.clone())?;
        self.at = part.end;
        Some(part)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.varint()?).ok()
    }

    /// Reads a zigzag varint of at most five bytes.
    fn varint(&mut self) -> Option<i64> {
        let mut value = 0_i64;
        for shift in (0..35).step_by(7) {
            let byte = *self.raw.get(self.at)?;
            self.at += 1;
            value |= i64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value >> 1 ^ -(value & 1));
            }
        }
        None
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[allow(clippy::cast_possible_wrap)]
fn i64_at(bytes: &[u8], at: usize) -> i64 {
    u64_at(bytes, at) as i64
}

#[allow(clippy::cast_possible_wrap)]
fn i32_at(bytes: &[u8], at: usize) -> i32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte)) as i32
}
