//! The streaming engine: reads, casts, reports and writes all tensors of a file in pieces, several at a time.
//!
//! ```text
//! jobs (tensors, in the order of the target) -> pieces of about a mebibyte, cut at whole tiles
//! each worker:  take the next piece; read it; cast it; write it; add up its report
//! the caller:   waits, and is asked now and then whether to go on
//! ```
//!
//! Pieces are taken in order, so that the first one that fails is the same however many workers there are. Bytes and
//! reports are the same for any piece size and number of workers: draws belong to indices, and reports merge exactly.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::convert::{ElementCast, Scratch};
use super::positioned::{begin_write_back, read_exact_at, write_all_at};
use crate::cast::TILE;
use crate::error::Error;
use crate::report::{CastReport, CompactReport};

/// Bytes of a piece, where it is largest: in the file or while it is cast.
const PIECE_BYTES: u64 = 1 << 20;

/// More workers would wait for memory and the disk; and each holds up to four pieces.
const MAX_WORKERS: usize = 8;

/// The interval at which the caller is asked whether to go on.
const PATIENCE: Duration = Duration::from_millis(50);

/// One tensor, or a range of its elements.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Where the bytes of the tensor begin in the source.
    pub source: u64,
    /// Where they go in the target.
    pub target: u64,
    /// The first element of the range, at a whole tile; a byte, if the elements are copied unchanged.
    pub first: u64,
    /// Elements of the range, or bytes.
    pub count: u64,
    /// How they are cast; `None`: they are copied.
    pub cast: Option<ElementCast>,
}

impl Job {
    fn source_bytes(&self, count: u64) -> u64 {
        self.cast.map_or(count, |cast| cast.source.bytes(count))
    }

    fn target_bytes(&self, count: u64) -> u64 {
        self.cast.map_or(count, |cast| cast.target.bytes(count))
    }

    /// Elements per piece: whole tiles.
    fn piece(&self, bytes: u64) -> u64 {
        let tile = TILE as u64;
        (bytes / self.cast.map_or(1, |cast| cast.widest()) / tile).max(1) * tile
    }
}

/// Why a run ended early; the job is given by its position.
#[derive(Debug)]
pub enum Failure {
    /// The source could not be read; `UnexpectedEof` where it ends too early.
    Read(usize, io::Error),
    /// The options refuse an element.
    Cast(usize, Error),
    /// The target could not be written.
    Write(usize, io::Error),
    /// The caller stopped the run.
    Stopped,
}

/// How pieces are made and shared.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Threads that read, cast and write.
    pub workers: NonZero<usize>,
    /// Bytes of a piece, at least a tile of elements.
    pub piece_bytes: u64,
}

impl Tuning {
    /// Makes settings for at most so many workers, with pieces of the default size.
    #[must_use]
    pub fn of(threads: usize) -> Self {
        let workers = NonZero::new(threads.min(MAX_WORKERS)).unwrap_or(NonZero::<usize>::MIN);
        Self { workers, piece_bytes: PIECE_BYTES }
    }
}

/// Carries out all jobs.
///
/// `go_on` is asked now and then with the number of bytes of the source that have been taken so far, in the order of the
/// jobs; once it returns false, no further piece is taken.
///
/// # Errors
/// The failure of the first piece that fails; what was written by then is in the target.
pub fn run(
    source: &File,
    target: &File,
    jobs: &[Job],
    tuning: Tuning,
    mut go_on: impl FnMut(u64) -> bool,
) -> Result<Vec<Option<Box<CompactReport>>>, Failure> {
    let mut starts = Vec::with_capacity(jobs.len() + 1);
    let mut pieces = 0;
    for job in jobs {
        starts.push(pieces);
        pieces += job.count.div_ceil(job.piece(tuning.piece_bytes));
    }
    starts.push(pieces);
    let run = Run {
        files: (source, target),
        jobs,
        starts,
        piece_bytes: tuning.piece_bytes,
        next: AtomicU64::new(0),
        taken: AtomicU64::new(0),
        stopped: AtomicBool::new(false),
        failure: Mutex::new(None),
        reports: Mutex::new(vec![None; jobs.len()]),
    };
    let workers = (tuning.workers.get() as u64).min(pieces) as usize;
    if pieces <= 1 || !run.on_threads(workers, &mut go_on) {
        run.work();
    }
    let failure = run.failure.into_inner().unwrap_or_default();
    if let Some((_, failure)) = failure {
        return Err(failure);
    }
    if run.stopped.into_inner() {
        return Err(Failure::Stopped);
    }
    let mut reports = run.reports.into_inner().unwrap_or_default();
    for (report, job) in reports.iter_mut().zip(jobs) {
        // A tensor without elements had no piece.
        if report.is_none() && job.cast.is_some_and(|cast| cast.settings.report) {
            *report = Some(Box::default());
        }
    }
    Ok(reports)
}

/// The state that all workers share.
struct Run<'a> {
    files: (&'a File, &'a File),
    jobs: &'a [Job],
    /// The number of the first piece of each job, and of all.
    starts: Vec<u64>,
    piece_bytes: u64,
    /// The next piece.
    next: AtomicU64,
    /// Bytes of the source in pieces that were taken.
    taken: AtomicU64,
    stopped: AtomicBool,
    /// The first piece that failed.
    failure: Mutex<Option<(u64, Failure)>>,
    /// In boxes, which the caller can keep without a copy.
    reports: Mutex<Vec<Option<Box<CompactReport>>>>,
}

impl Run<'_> {
    /// Starts the workers and waits for them; false if none could be started.
    fn on_threads(&self, workers: usize, go_on: &mut impl FnMut(u64) -> bool) -> bool {
        let (caller, left) = (thread::current(), AtomicUsize::new(workers));
        thread::scope(|scope| {
            let mut started = 0;
            for _ in 0..workers {
                let work = || {
                    let _last = Leaving { left: &left, caller: &caller };
                    self.work();
                };
                started += usize::from(thread::Builder::new().spawn_scoped(scope, work).is_ok());
            }
            left.fetch_sub(workers - started, Ordering::AcqRel);
            while left.load(Ordering::Acquire) > 0 {
                thread::park_timeout(PATIENCE);
                if !self.stopped.load(Ordering::Relaxed) && !go_on(self.taken.load(Ordering::Relaxed)) {
                    self.stopped.store(true, Ordering::Relaxed);
                }
            }
            started > 0
        })
    }

    /// Takes pieces until there are no more.
    fn work(&self) {
        let (mut bytes, mut scratch) = (Vec::new(), Scratch::default());
        let (mut index, mut sum) = (0, None);
        let end = self.starts[self.jobs.len()];
        while !self.stopped.load(Ordering::Relaxed) {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= end {
                break;
            }
            if self.starts[index + 1] <= piece {
                self.add(index, sum.take());
                // Jobs without elements share their start with the next job: the last of these has the piece.
                index = self.starts.partition_point(|&start| start <= piece) - 1;
            }
            match self.convert(index, piece, &mut bytes, &mut scratch) {
                Ok(Some(report)) => *sum.get_or_insert_with(CastReport::default) += &report,
                Ok(None) => {}
                Err(failure) => self.fail(piece, failure),
            }
        }
        self.add(index, sum);
    }

    /// Reads, casts and writes one piece.
    fn convert(
        &self,
        index: usize,
        piece: u64,
        bytes: &mut Vec<u8>,
        scratch: &mut Scratch,
    ) -> Result<Option<CastReport>, Failure> {
        let job = &self.jobs[index];
        let size = job.piece(self.piece_bytes);
        let done = (piece - self.starts[index]) * size;
        let (first, count) = (job.first + done, size.min(job.count - done));
        let length = job.source_bytes(count);
        self.taken.fetch_add(length, Ordering::Relaxed);
        bytes.resize(length as usize, 0);
        read_exact_at(self.files.0, bytes, job.source + job.source_bytes(first))
            .map_err(|error| Failure::Read(index, error))?;
        let (result, report) = match job.cast {
            None => (bytes.as_slice(), None),
            Some(cast) => cast.convert(first, bytes, scratch).map_err(|error| Failure::Cast(index, error))?,
        };
        let place = job.target + job.target_bytes(first);
        write_all_at(self.files.1, result, place).map_err(|error| Failure::Write(index, error))?;
        begin_write_back(self.files.1, place..place + result.len() as u64);
        Ok(report)
    }

    /// Adds a worker's share of a job's report.
    fn add(&self, index: usize, sum: Option<CastReport>) {
        let (Some(mut sum), Ok(mut reports)) = (sum, self.reports.lock()) else { return };
        if let Some(other) = reports[index].take() {
            sum += &(*other).into();
        }
        reports[index] = Some(Box::new(sum.into()));
    }

    /// Notes a failure, unless one of an earlier piece is known, and lets no other piece be taken.
    fn fail(&self, piece: u64, failure: Failure) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Ok(mut known) = self.failure.lock()
            && known.as_ref().is_none_or(|&(earlier, _)| piece < earlier)
        {
            *known = Some((piece, failure));
        }
    }
}

/// Wakes the caller when the last worker leaves, even by a panic.
struct Leaving<'a> {
    left: &'a AtomicUsize,
    caller: &'a thread::Thread,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.left.fetch_sub(1, Ordering::AcqRel);
        self.caller.unpark();
    }
}
