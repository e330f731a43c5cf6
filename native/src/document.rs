//! A body, read once and identified step by step.

use crate::faults::caught;
use crate::identify::{Fields, Names, Plain, Prepared, Rules};
use crate::json::{Reader, Shape};
use crate::tuples::new_tuple;
use blake2b_simd::many::{hash_many, HashManyJob};
use blake2b_simd::Params;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple, PyType};
use std::sync::Arc;

const KEY_BYTES: usize = 16;
const FINGERPRINT_BYTES: usize = 8;
const KSUID_BYTES: usize = 20;
const KSUID_CHARS: usize = 27;
/// The work of an event besides its bytes: `app.ingest.event_limits.EVENT_WORK_BYTES`.
const EVENT_WORK_BYTES: usize = 1024;
/// `dedupe.model.record.FLAG_ID_ASSIGNED`.
const FLAG_ID_ASSIGNED: u8 = 2;

/// What does not change between requests.
#[pyclass(frozen)]
pub struct Deployment {
    key: Params,
    partitions: u64,
    depth_max: u32,
    event: Py<PyType>,
    session: Py<PyType>,
    no_fingerprints: Py<PyTuple>,
}

#[pymethods]
impl Deployment {
    /// `event` and `session` are the classes of `dedupe.model.types`.
    #[new]
    fn new(
        py: Python<'_>,
        secret: &[u8],
        partitions: u64,
        depth_max: u32,
        event: Py<PyType>,
        session: Py<PyType>,
    ) -> PyResult<Self> {
        if secret.len() > 64 || partitions == 0 {
            return Err(PyValueError::new_err("a secret has at most 64 bytes, and a topic at least one partition"));
        }
        let mut key = Params::new();
        key.hash_length(KEY_BYTES).key(secret);
        let no_fingerprints = PyTuple::empty(py).unbind();
        Ok(Deployment { key, partitions, depth_max, event, session, no_fingerprints })
    }
}

/// The names and values by which events are plain; the same for many requests.
#[pyclass(frozen)]
pub struct PlainFields(Arc<Fields>);

#[pymethods]
impl PlainFields {
    #[new]
    fn new(ignored: Vec<Vec<u8>>, dropped: Vec<Vec<u8>>, odd: Vec<Vec<u8>>, types: Vec<Vec<u8>>) -> Self {
        let (ignored, dropped, odd) = (Names::new(ignored), Names::new(dropped), Names::new(odd));
        PlainFields(Arc::new(Fields { ignored, dropped, odd, types }))
    }
}

/// The client session of a request.
struct Session {
    client_hash: Py<PyBytes>,
    session_hash: Py<PyBytes>,
    epoch: u64,
    acknowledged_through: u64,
    partition: u64,
    id_prefix: Vec<u8>,
    secondary_prefix: Vec<u8>,
}

/// What all events of one request have in common.
#[pyclass(frozen)]
pub struct Request {
    rules: Rules,
    source: Py<PyString>,
    order: Py<PyAny>,
    /// What is hashed before an event's id, or before its sequence.
    key_prefix: Vec<u8>,
    session: Option<Session>,
}

/// (first sequence, client hash, session hash, epoch, acknowledged through, partition, prefixes of id and secondary key)
type SessionFields = (Option<u64>, Py<PyBytes>, Py<PyBytes>, u64, u64, u64, Vec<u8>, Vec<u8>);

#[pymethods]
impl Request {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        fields: &PlainFields,
        source: Py<PyString>,
        order: Py<PyAny>,
        key_prefix: Vec<u8>,
        event_bytes_max: usize,
        merged_bytes: usize,
        ip_field: Vec<u8>,
        suffix: Vec<u8>,
        suffix_without_sent_at: Vec<u8>,
        session: Option<SessionFields>,
    ) -> Self {
        let first_sequence = session.as_ref().and_then(|fields| fields.0);
        let session = session.map(
            |(_, client_hash, session_hash, epoch, acknowledged_through, partition, id_prefix, secondary_prefix)| {
                Session {
                    client_hash,
                    session_hash,
                    epoch,
                    acknowledged_through,
                    partition,
                    id_prefix,
                    secondary_prefix,
                }
            },
        );
        let rules = Rules {
            fields: fields.0.clone(),
            event_bytes_max,
            merged_bytes,
            ip_field,
            suffix,
            suffix_without_sent_at,
            has_session: session.is_some(),
            first_sequence,
        };
        Request { rules, source, order, key_prefix, session }
    }
}

/// Events, the rest of `bytes_left`, and the JSON of the odd event that follows them.
type Identified<'py> = (Bound<'py, PyList>, usize, Option<Bound<'py, PyBytes>>);

/// The events of one body.
#[pyclass]
pub struct Document {
    deployment: Py<Deployment>,
    body: Py<PyBytes>,
    reader: Reader,
    is_checked: bool,
}

#[pymethods]
impl Document {
    #[new]
    fn new(deployment: Py<Deployment>, body: Py<PyBytes>) -> Self {
        let reader = Reader::new(deployment.get().depth_max);
        Document { deployment, body, reader, is_checked: false }
    }

    /// Reads about `work_bytes` more: returns whether all was read, None if the Python code must read the body.
    fn read(&mut self, py: Python<'_>, work_bytes: usize) -> Option<bool> {
        let body = self.body.bind(py).as_bytes();
        if !self.is_checked && (simdutf8::basic::from_utf8(body).is_err() || u32::try_from(body.len()).is_err()) {
            return None;
        }
        self.is_checked = true;
        caught(|| Ok(self.reader.read(body, work_bytes).ok()))
    }

    fn __len__(&self) -> usize {
        self.reader.items.len()
    }

    /// "batch", "array" or "event".
    #[getter]
    fn shape(&self) -> &'static str {
        match self.reader.shape {
            Shape::Batch => "batch",
            Shape::Array => "array",
            Shape::Event => "event",
        }
    }

    /// Whether the first event has a field `batch`.
    #[getter]
    fn is_nested(&self) -> bool {
        self.reader.items.first().is_some_and(|item| {
            self.reader.fields[item.fields.clone()].iter().any(|field| field.name(&self.reader.text) == b"batch")
        })
    }

    /// The JSON of the body's top level, with an empty batch.
    fn top<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let body = self.body.bind(py).as_bytes();
        match self.reader.shape {
            Shape::Event => self.body.bind(py).clone(),
            Shape::Array => PyBytes::new(py, b"[]"),
            Shape::Batch => {
                let batch = &self.reader.batch;
                PyBytes::new(py, &[&body[..batch.start], b"[]", &body[batch.end..]].concat())
            }
        }
    }

    /// The JSON of the event at `index`.
    fn raw<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyBytes>> {
        let item = self.reader.items.get(index).ok_or_else(|| PyIndexError::new_err(index))?;
        Ok(PyBytes::new(py, &self.body.bind(py).as_bytes()[item.raw.clone()]))
    }

    /// Identifies the events from `start` on.
    ///
    /// Returns the events up to the first odd one, or for about `work_bytes`; the rest of `bytes_left`; and the JSON of
    /// the odd event that follows them.
    fn identify<'py>(
        &self,
        py: Python<'py>,
        request: &Request,
        start: usize,
        bytes_left: usize,
        work_bytes: usize,
    ) -> Option<Identified<'py>> {
        caught(|| self.identified(py, request, start, bytes_left, work_bytes).map(Some))
    }
}

impl Document {
    fn identified<'py>(
        &self,
        py: Python<'py>,
        request: &Request,
        start: usize,
        mut bytes_left: usize,
        mut work_bytes: usize,
    ) -> PyResult<Identified<'py>> {
        let mut prepared = Prepared::default();
        let mut odd = None;
        for (index, item) in self.reader.items.iter().enumerate().skip(start) {
            match prepared.add(item, &self.reader, &request.rules, index) {
                Some(size) if size <= bytes_left => {
                    bytes_left -= size;
                    work_bytes = work_bytes.saturating_sub(size + EVENT_WORK_BYTES);
                }
                size => {
                    if size.is_some() {
                        prepared.events.pop();
                    }
                    odd = Some(self.raw(py, index)?);
                    break;
                }
            }
            if work_bytes == 0 {
                break;
            }
        }
        let events = self.events(py, request, &prepared)?;
        Ok((events, bytes_left, odd))
    }

    fn events<'py>(&self, py: Python<'py>, request: &Request, prepared: &Prepared) -> PyResult<Bound<'py, PyList>> {
        let deployment = self.deployment.get();
        let mut fingerprint = Params::new();
        fingerprint.hash_length(FINGERPRINT_BYTES);
        let events = &prepared.events;
        let fingerprints =
            hashes(&fingerprint, events, |event, input| input.extend_from_slice(prepared.content(event)));
        let keys = hashes(&deployment.key, events, |event, input| {
            input.extend_from_slice(&request.key_prefix);
            match &request.session {
                None => input.extend_from_slice(prepared.id(event).unwrap_or_default()),
                Some(_) => input.extend_from_slice(&event.sequence.to_be_bytes()),
            }
        });
        let list = PyList::empty(py);
        let mut value = Vec::with_capacity(2048);
        for (place, event) in events.iter().enumerate() {
            let own_id = prepared.id(event);
            let assigned_id = match (&request.session, own_id) {
                (Some(session), None) => session.assigned_id(event.sequence),
                _ => Vec::new(),
            };
            value.clear();
            prepared.write_value(event, &request.rules, &assigned_id, &mut value);
            let id = own_id.unwrap_or(&assigned_id);
            let key = &keys[place].as_bytes()[..KEY_BYTES];
            let (partition, session, secondary_key) = match &request.session {
                None => (deployment.partition_of(key), py.None(), py.None()),
                Some(session) => {
                    let secondary_key = own_id.map(|id| session.secondary_key(py, &deployment.key, id));
                    (
                        session.partition,
                        session.place(py, deployment, event.sequence)?,
                        secondary_key.unwrap_or(py.None()),
                    )
                }
            };
            let flags = if own_id.is_some() { 0 } else { FLAG_ID_ASSIGNED };
            let fields = [
                PyBytes::new(py, key).into_any().unbind(),
                partition.into_pyobject(py)?.into_any().unbind(),
                PyBytes::new(py, &fingerprints[place].as_bytes()[..FINGERPRINT_BYTES]).into_any().unbind(),
                request.source.clone_ref(py).into_any(),
                PyString::from_bytes(py, id)?.into_any().unbind(),
                PyBytes::new(py, &value).into_any().unbind(),
                flags.into_pyobject(py)?.into_any().unbind(),
                session,
                py.None(),
                deployment.no_fingerprints.clone_ref(py).into_any(),
                secondary_key,
                request.order.clone_ref(py),
            ];
            list.append(new_tuple(py, &deployment.event, fields)?)?;
        }
        Ok(list)
    }
}

impl Deployment {
    /// `dedupe.model.routing.partition_of`.
    fn partition_of(&self, key: &[u8]) -> u64 {
        key[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) % self.partitions
    }
}

impl Session {
    fn place(&self, py: Python<'_>, deployment: &Deployment, sequence: u64) -> PyResult<Py<PyAny>> {
        let fields = [
            self.client_hash.clone_ref(py).into_any(),
            self.session_hash.clone_ref(py).into_any(),
            sequence.into_pyobject(py)?.into_any().unbind(),
            self.epoch.into_pyobject(py)?.into_any().unbind(),
            self.acknowledged_through.into_pyobject(py)?.into_any().unbind(),
            py.None(),
        ];
        Ok(new_tuple(py, &deployment.session, fields)?.unbind())
    }

    fn secondary_key(&self, py: Python<'_>, key: &Params, id: &[u8]) -> Py<PyAny> {
        let input = [&self.secondary_prefix, id].concat();
        PyBytes::new(py, key.hash(&input).as_bytes()).into_any().unbind()
    }

    /// `app.ingest.message_ids.session_event_ids`.
    fn assigned_id(&self, sequence: u64) -> Vec<u8> {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let input = [&self.id_prefix[..], &sequence.to_be_bytes()].concat();
        let mut hash = Params::new();
        let mut number = hash.hash_length(KSUID_BYTES).hash(&input).as_bytes().to_vec();
        let mut text = vec![0; KSUID_CHARS];
        for digit in text.iter_mut().rev() {
            let mut rest = 0;
            for byte in &mut number {
                let value = rest << 8 | u32::from(*byte);
                *byte = (value / 62).to_le_bytes()[0];
                rest = value % 62;
            }
            *digit = DIGITS[rest as usize];
        }
        text
    }
}

/// Returns the hash of each event's input, which `write` appends; several are computed at once.
fn hashes(params: &Params, events: &[Plain], write: impl Fn(&Plain, &mut Vec<u8>)) -> Vec<blake2b_simd::Hash> {
    let mut input = Vec::new();
    let mut ends = vec![0];
    for event in events {
        write(event, &mut input);
        ends.push(input.len());
    }
    let mut jobs: Vec<_> = ends.windows(2).map(|ends| HashManyJob::new(params, &input[ends[0]..ends[1]])).collect();
    hash_many(jobs.iter_mut());
    jobs.iter().map(HashManyJob::to_hash).collect()
}
