//! The streaming engine: reads, casts, reports and writes all tensors of a file in pieces, several at a time.
//!
//! ```text
//! the caller:   hands over jobs, batch by batch; waits; is asked now and then whether to go on
//! each worker:  from the first batch on, takes the next pieces; reads, casts and writes them; adds up their reports
//! ```
//!
//! Pieces are of about a mebibyte, cut at whole tiles; smaller ones that lie behind one another in both files are read and
//! written together. They are taken in order, so that the first one that fails is the same however many workers there
//! are. Bytes and reports are the same for any batches, piece size and number of workers: draws belong to indices, and
//! reports merge exactly.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{slice, thread};

use super::convert::Scratch;
use super::jobs::{GroupCount, Job, Queue};
use super::positioned::{begin_write_back, read_exact_at, write_all_at};
use castwise_core::error::Error;
use castwise_core::report::{CastReport, CompactReport};

/// Bytes of a piece, where it is largest: in the file or while it is cast.
const PIECE_BYTES: u64 = 1 << 20;

/// More workers would wait for memory and the disk; and each holds up to four pieces.
const MAX_WORKERS: usize = 8;

/// The interval at which the caller is asked whether to go on.
const PATIENCE: Duration = Duration::from_millis(50);

/// Why a piece failed; the job is given by its position.
#[derive(Debug)]
pub enum Failure {
    /// The source could not be read; `UnexpectedEof` where it ends too early.
    Read(usize, io::Error),
    /// The options refuse an element.
    Cast(usize, Error),
    /// The target could not be written from some byte of this job on.
    Write(usize, io::Error),
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

/// A piece: the position of its job, and its first element.
type Place = (usize, u64);

/// The bytes of pieces, reused for each.
#[derive(Default)]
struct Buffers {
    source: Vec<u8>,
    target: Vec<u8>,
    scratch: Scratch,
}

/// What each job lost, if that is asked for; in boxes, which the caller can keep without a copy.
type Reports = Vec<Option<Box<CompactReport>>>;

/// Carries out all jobs. Those of the first batch are under way while the caller makes others.
///
/// `go_on` is asked after each batch, and then now and then, with the number of bytes of the source that have been taken
/// so far, in the order of the jobs. Once it returns an error, or a batch is one, no further piece is taken.
///
/// Returns the reports, or the failure of the first piece that fails; what was written by then is in the target.
///
/// # Errors
/// The error of a batch or of `go_on`.
pub fn convert_tensors<E>(
    source: &File,
    target: &File,
    batches: impl IntoIterator<Item = Result<Vec<Job>, E>>,
    tuning: Tuning,
    mut go_on: impl FnMut(u64) -> Result<(), E>,
) -> Result<Result<Reports, Failure>, E> {
    let (sender, jobs) = channel();
    let run = Run {
        files: (source, target),
        piece_bytes: tuning.piece_bytes,
        queue: Mutex::new(Queue::new(jobs, tuning.piece_bytes)),
        taken: AtomicU64::new(0),
        stopped: AtomicBool::new(false),
        failure: Mutex::new(None),
        reports: Mutex::default(),
    };
    run.oversee(batches, sender, tuning.workers, &mut go_on)?;
    let Run { failure, reports, .. } = run;
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(match failure {
        Some((_, failure)) => Err(failure),
        None => Ok(reports.into_inner().unwrap_or_else(PoisonError::into_inner)),
    })
}

/// The state that all workers share.
struct Run<'a> {
    files: (&'a File, &'a File),
    piece_bytes: u64,
    queue: Mutex<Queue>,
    /// Bytes of the source in pieces that were taken.
    taken: AtomicU64,
    stopped: AtomicBool,
    /// The first piece that failed.
    failure: Mutex<Option<(Place, Failure)>>,
    reports: Mutex<Reports>,
}

impl Run<'_> {
    /// Hands over all batches, to workers that it starts for them, and waits until these have left.
    fn oversee<E>(
        &self,
        batches: impl IntoIterator<Item = Result<Vec<Job>, E>>,
        sender: Sender<(usize, Job)>,
        workers: NonZero<usize>,
        go_on: &mut impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let (caller, left) = (thread::current(), AtomicUsize::new(0));
        thread::scope(|scope| {
            let mut started = 0;
            let start = |groups: usize| {
                // One group alone is not worth a thread.
                let wanted = if groups > 1 { groups.min(workers.get()) } else { 0 };
                while started < wanted {
                    started += 1;
                    let leaving = Leaving::new(&left, &caller);
                    // Where no thread can be started, the closure is dropped, and `leaving` with it.
                    let _ = thread::Builder::new().spawn_scoped(scope, || {
                        let _leaving = leaving;
                        self.work(|_| Ok::<_, Infallible>(()))
                    });
                }
            };
            let mut said = self.hand_over(batches, sender, workers.get().max(2), start, go_on);
            loop {
                if said.is_err() {
                    self.stop();
                }
                if left.load(Ordering::Acquire) == 0 {
                    break;
                }
                thread::park_timeout(PATIENCE);
                if !self.is_stopped() {
                    said = go_on(self.taken.load(Ordering::Relaxed));
                }
            }
            // All is done by now, unless there were no workers.
            said.and_then(|()| self.work(go_on))
        })
    }

    /// Hands over all batches; `start` is told after each how many groups of pieces there are so far, `most` at most.
    fn hand_over<E>(
        &self,
        batches: impl IntoIterator<Item = Result<Vec<Job>, E>>,
        sender: Sender<(usize, Job)>,
        most: usize,
        mut start: impl FnMut(usize),
        go_on: &mut impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut count, mut groups) = (0, GroupCount::new(self.piece_bytes));
        for batch in batches {
            let jobs = batch?;
            locked(&self.reports).extend(jobs.iter().map(Job::report_without_pieces));
            for job in jobs {
                groups.add(job, most);
                // The receiver lives as long as `self`.
                let _ = sender.send((count, job));
                count += 1;
            }
            start(groups.count);
            go_on(self.taken.load(Ordering::Relaxed))?;
            if self.is_stopped() {
                break;
            }
        }
        // Workers that wait for jobs go.
        drop(sender);
        Ok(())
    }

    /// Takes groups of pieces until there are no more, or `go_on` returns an error after one.
    fn work<E>(&self, mut go_on: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        let (mut pieces, mut buffers) = (Vec::new(), Buffers::default());
        let (mut index, mut sum) = (0, None);
        let mut said = Ok(());
        while said.is_ok() && self.take(&mut pieces) {
            let outcome = self.convert(&pieces, &mut buffers, &mut |next, report| {
                if next != index {
                    self.add(index, sum.take());
                    index = next;
                }
                *sum.get_or_insert_with(CastReport::default) += &report;
            });
            if let Err((piece, failure)) = outcome {
                self.fail(piece, failure);
            }
            said = go_on(self.taken.load(Ordering::Relaxed));
        }
        self.add(index, sum);
        said
    }

    /// Takes the next pieces, each with the position of its job. False at the end, or if the run is stopped.
    fn take(&self, pieces: &mut Vec<(usize, Job)>) -> bool {
        if self.is_stopped() {
            return false;
        }
        locked(&self.queue).next_pieces(pieces);
        let bytes: usize = pieces.iter().map(|(_, piece)| piece.source_len()).sum();
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        !pieces.is_empty()
    }

    /// Reads, casts and writes pieces that lie behind one another in both files; hands over their reports.
    fn convert(
        &self,
        pieces: &[(usize, Job)],
        buffers: &mut Buffers,
        report: &mut impl FnMut(usize, CastReport),
    ) -> Result<(), (Place, Failure)> {
        let (index, piece) = pieces[0];
        let (place, (from, to)) = ((index, piece.first), piece.begins());
        let Buffers { source, target, scratch } = buffers;
        source.resize(pieces.iter().map(|(_, piece)| piece.source_len()).sum(), 0);
        if let Err(error) = read_exact_at(self.files.0, source, from) {
            return match pieces {
                [_] => Err((place, Failure::Read(index, error))),
                // One by one, to find the one that cannot be read.
                _ => {
                    pieces.iter().try_for_each(|piece| self.convert(slice::from_ref(piece), buffers, report))
                }
            };
        }
        let is_copied = pieces.iter().all(|(_, piece)| piece.cast.is_none());
        if !is_copied {
            target.resize(pieces.iter().map(|(_, piece)| piece.target_len()).sum(), 0);
            let (mut sources, mut targets) = (source.as_slice(), target.as_mut_slice());
            for &(index, ref piece) in pieces {
                let (given, result);
                (given, sources) = sources.split_at(piece.source_len());
                (result, targets) = targets.split_at_mut(piece.target_len());
                let Some(cast) = piece.cast else {
                    result.copy_from_slice(given);
                    continue;
                };
                let lost = cast
                    .convert(piece.first, given, result, scratch)
                    .map_err(|error| ((index, piece.first), Failure::Cast(index, error)))?;
                if let Some(lost) = lost {
                    report(index, lost);
                }
            }
        }
        let result = if is_copied { source } else { target };
        write_all_at(self.files.1, result, to).map_err(|(written, error)| {
            let ends = pieces.iter().scan(0, |end, (_, piece)| {
                *end += piece.target_len();
                Some(*end)
            });
            let failed = pieces[ends.take_while(|&end| end <= written).count()].0;
            (place, Failure::Write(failed, error))
        })?;
        begin_write_back(self.files.1, to..to + result.len() as u64);
        Ok(())
    }

    /// Adds a worker's share of a job's report.
    fn add(&self, index: usize, sum: Option<CastReport>) {
        let Some(mut sum) = sum else { return };
        let report = &mut locked(&self.reports)[index];
        if let Some(other) = report.take() {
            sum += &(*other).into();
        }
        *report = Some(Box::new(sum.into()));
    }

    /// Notes the failure of a piece, unless one of an earlier piece is known, and lets no other piece be taken.
    fn fail(&self, piece: Place, failure: Failure) {
        self.stop();
        let mut known = locked(&self.failure);
        if known.as_ref().is_none_or(|&(earlier, _)| piece < earlier) {
            *known = Some((piece, failure));
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// Locks what is whole at every moment, even if a worker panics.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a worker, and wakes the caller when it leaves, even by a panic.
struct Leaving<'a> {
    left: &'a AtomicUsize,
    caller: &'a thread::Thread,
}

impl<'a> Leaving<'a> {
    fn new(left: &'a AtomicUsize, caller: &'a thread::Thread) -> Self {
        left.fetch_add(1, Ordering::AcqRel);
        Self { left, caller }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.left.fetch_sub(1, Ordering::AcqRel);
        self.caller.unpark();
    }
}
