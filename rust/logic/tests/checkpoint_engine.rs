//! The streaming engine: the same bytes and reports for any number of workers and size of pieces.

use std::convert::Infallible;
use std::fs::{self, File};
use std::num::NonZero;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use castwise_core::Error;
use castwise_core::cast::{Settings, cast_slice};
use castwise_core::codec::options::{NanRule, Options, Overflow, Rounding};
use castwise_core::parse::parse;
use castwise_core::report::{CastReport, CompactReport};
use castwise_logic::checkpoint::{ElementCast, Elements, Failure, Job, Tuning, convert_tensors};

type Reports = Vec<Option<Box<CompactReport>>>;

const COUNTS: [usize; 4] = [1, 0, 1024 * 7 + 5, 300];

/// Two files in a folder of their own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("castwise-engine-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Runs jobs over a file with these contents; what the target holds in the end, and what the run says.
    fn convert(&self, source: &[u8], jobs: &[Job], tuning: Tuning) -> (Vec<u8>, Result<Reports, Failure>) {
        let (from, to) = (self.0.join("source"), self.0.join("target"));
        fs::write(&from, source).unwrap();
        let target = File::create(&to).unwrap();
        let outcome =
            convert_tensors(&File::open(&from).unwrap(), &target, batches(jobs), tuning, |_| Ok(()));
        (fs::read(&to).unwrap(), outcome.unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn elements(name: &str) -> Elements {
    Elements { format: parse(name).unwrap(), packed: false, swapped: false }
}

/// Batches of one job, two, none, four, and so on.
fn batches(jobs: &[Job]) -> impl Iterator<Item = Result<Vec<Job>, Infallible>> {
    let mut left = jobs.to_vec();
    [1, 2, 0, 4]
        .into_iter()
        .cycle()
        .map_while(move |count| (!left.is_empty()).then(|| Ok(left.drain(..count.min(left.len())).collect())))
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index as f32 * 0.731).sin() * 300.0).collect()
}

fn tunings() -> impl Iterator<Item = Tuning> {
    [(1, 1), (1, 1 << 20), (2, 1), (3, 5000), (4, 1 << 14)]
        .into_iter()
        .map(|(workers, piece_bytes)| Tuning { workers: NonZero::new(workers).unwrap(), piece_bytes })
}

/// Tensors one after the other, with a gap of so many bytes before each in the target, and their source.
fn tensors(cast: ElementCast, gap: u64) -> (Vec<u8>, Vec<Job>) {
    let (mut source, mut jobs, mut target) = (Vec::new(), Vec::new(), 0);
    for count in COUNTS {
        target += gap;
        jobs.push(Job {
            source: source.len() as u64,
            target,
            first: 0,
            count: count as u64,
            cast: Some(cast),
        });
        source.extend(values(count).into_iter().flat_map(f32::to_ne_bytes));
        target += cast.target.bytes(count as u64);
    }
    let length = source.len() as u64;
    jobs.push(Job { source: 0, target, first: 0, count: length, cast: None });
    (source, jobs)
}

#[test]
fn the_result_is_that_of_whole_tensors() {
    let folder = Folder::new("whole");
    for (rounding, seed) in [(None, 0), (Some(Rounding::TowardsZero), 0), (Some(Rounding::Stochastic), 77)] {
        let options = Options { rounding, seed, ..Options::default() };
        let settings = Settings { options, report: true, threads: 1 };
        let cast = ElementCast { source: elements("float32"), target: elements("float8_e4m3fn"), settings };
        for (gap, tuning) in [0, 8].into_iter().flat_map(|gap| tunings().map(move |tuning| (gap, tuning))) {
            let (source, jobs) = tensors(cast, gap);
            let (result, reports) = folder.convert(&source, &jobs, tuning);
            let reports = reports.unwrap();
            for (job, report) in jobs[..COUNTS.len()].iter().zip(&reports) {
                let mut expected = vec![0; job.count as usize];
                let part = &source[job.source as usize..][..4 * job.count as usize];
                let formats = (cast.source.format, cast.target.format);
                let whole = cast_slice(part, formats.0, &mut expected, formats.1, &settings).unwrap();
                assert_eq!(&result[job.target as usize..][..expected.len()], &expected, "{tuning:?}");
                assert_eq!(report.as_deref(), whole.map(CompactReport::from).as_ref());
            }
            assert_eq!(&result[jobs[COUNTS.len()].target as usize..], &source);
            assert_eq!(reports[COUNTS.len()], None);
        }
    }
}

#[test]
fn the_first_refused_element_is_named_by_its_place_in_the_tensor() {
    let folder = Folder::new("refused");
    let options = Options { overflow: Overflow::Raise, nan: NanRule::Raise, ..Options::default() };
    let settings = Settings { options, report: true, threads: 1 };
    let cast = ElementCast { source: elements("float32"), target: elements("float16"), settings };
    let (mut source, jobs) = tensors(cast, 0);
    for (element, wrong) in [(6000, f32::NAN), (5000, 1e30), (7000, 1e30)] {
        let place = jobs[2].source as usize + 4 * element;
        source[place..place + 4].copy_from_slice(&wrong.to_ne_bytes());
    }
    for tuning in tunings() {
        let (_, outcome) = folder.convert(&source, &jobs, tuning);
        assert!(matches!(outcome, Err(Failure::Cast(2, Error::Overflow { index: 5000, .. }))), "{outcome:?}");
    }
}

#[test]
fn ranges_of_tensors_in_any_order() {
    let folder = Folder::new("ranges");
    let options = Options { rounding: Some(Rounding::Stochastic), seed: 5, ..Options::default() };
    let settings = Settings { options, report: true, threads: 1 };
    let cast = ElementCast { source: elements("float32"), target: elements("bfloat16"), settings };
    let (source, jobs) = tensors(cast, 0);
    let (expected, whole) = folder.convert(&source, &jobs, Tuning::of(1));
    let mut ranges = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        for first in (0..job.count).step_by(3 * 1024) {
            ranges.push((index, Job { first, count: job.count.min(first + 3 * 1024) - first, ..*job }));
        }
    }
    ranges.reverse();
    let parts: Vec<Job> = ranges.iter().map(|range| range.1).collect();
    for tuning in tunings() {
        let (result, reports) = folder.convert(&source, &parts, tuning);
        assert_eq!(result, expected);
        let mut sums = vec![CastReport::default(); jobs.len()];
        for ((index, _), report) in ranges.iter().zip(reports.unwrap()) {
            if let Some(report) = report {
                sums[*index] += &(*report).into();
            }
        }
        for (sum, report) in sums.into_iter().zip(whole.as_ref().unwrap()) {
            assert_eq!(CompactReport::from(sum), report.as_deref().cloned().unwrap_or_default());
        }
    }
}

#[test]
fn packed_and_swapped_elements() {
    let folder = Folder::new("packed");
    let settings = Settings { options: Options::default(), report: false, threads: 1 };
    let codes: Vec<u8> = (0..9000).map(|index| (index % 16) as u8).collect();
    let packed: Vec<u8> = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
    let (nibbles, single) = (Elements { packed: true, ..elements("float4_e2m1fn") }, elements("float32"));
    let swapped = Elements { swapped: true, ..single };
    let job = |source, target| {
        let cast = Some(ElementCast { source, target, settings });
        [Job { source: 0, target: 0, first: 0, count: codes.len() as u64, cast }]
    };
    let mut expected = vec![0; 4 * codes.len()];
    cast_slice(&codes, nibbles.format, &mut expected, single.format, &settings).unwrap();
    let turned: Vec<u8> = expected.chunks(4).flat_map(|one| one.iter().rev().copied()).collect();
    for tuning in tunings() {
        assert_eq!(folder.convert(&packed, &job(nibbles, single), tuning).0, expected);
        assert_eq!(folder.convert(&packed, &job(nibbles, swapped), tuning).0, turned);
        assert_eq!(folder.convert(&turned, &job(swapped, nibbles), tuning).0, packed);
    }
}

#[test]
fn neighbors_that_are_cast_copied_and_packed() {
    let folder = Folder::new("neighbors");
    let settings = Settings { options: Options::default(), report: true, threads: 1 };
    let (single, narrow) = (elements("float32"), elements("float8_e5m2"));
    let nibbles = Elements { packed: true, ..elements("float4_e2m1fn") };
    let casts = [Some((single, narrow)), None, Some((single, nibbles)), None, None, Some((nibbles, narrow))];
    let (mut jobs, mut source, mut target) = (Vec::new(), Vec::new(), 0);
    for (index, sides) in casts.iter().cycle().take(60).enumerate() {
        let cast = sides.map(|(source, target)| ElementCast { source, target, settings });
        let count = 2 * (index * index) as u64;
        jobs.push(Job { source: source.len() as u64, target, first: 0, count, cast });
        let (read, written) = cast.map_or((count, count), |c| (c.source.bytes(count), c.target.bytes(count)));
        source.extend(values(read as usize).iter().map(|value| *value as i8 as u8));
        target += written;
    }
    // Backwards, no tensor lies behind the one before it.
    let backwards: Vec<Job> = jobs.iter().rev().copied().collect();
    let (expected, reports) = folder.convert(&source, &backwards, Tuning::of(1));
    let reports: Vec<_> = reports.unwrap().into_iter().rev().collect();
    assert_eq!(expected.len() as u64, target);
    for tuning in tunings() {
        let (result, found) = folder.convert(&source, &jobs, tuning);
        assert_eq!(result, expected);
        assert_eq!(found.unwrap(), reports);
        // Each is named by its own position where the file ends within it.
        for (index, job) in jobs.iter().enumerate().filter(|(_, job)| job.count > 0) {
            let (_, outcome) = folder.convert(&source[..=job.source as usize], &jobs, tuning);
            assert!(matches!(outcome, Err(Failure::Read(found, _)) if found == index));
        }
    }
}

#[test]
fn a_source_that_ends_early_and_a_caller_who_stops() {
    let folder = Folder::new("early");
    let settings = Settings { options: Options::default(), report: true, threads: 1 };
    let cast = ElementCast { source: elements("float32"), target: elements("bfloat16"), settings };
    let (source, jobs) = tensors(cast, 0);
    let (_, outcome) = folder.convert(&source[..source.len() - 1], &jobs, Tuning::of(2));
    assert!(matches!(outcome, Err(Failure::Read(3, error)) if error.raw_os_error().is_none()));
    // Pieces of a tile each, which take longer than the first question.
    fs::write(folder.0.join("source"), vec![0; 64 << 20]).unwrap();
    let many = [Job { source: 0, target: 0, first: 0, count: 16 << 20, cast: Some(cast) }];
    let (from, to) = (File::open(folder.0.join("source")), File::create(folder.0.join("target")));
    let tuning = Tuning { workers: NonZero::<usize>::MIN, piece_bytes: 1 };
    let mut asked = 0;
    let outcome = convert_tensors(&from.unwrap(), &to.unwrap(), [Ok(many.to_vec())], tuning, |_| {
        asked += 1;
        Err("enough")
    });
    assert_eq!(outcome.err(), Some("enough"));
    assert_eq!(asked, 1);
}

#[test]
fn jobs_are_under_way_while_others_are_made() {
    let folder = Folder::new("meanwhile");
    let (source, to) = (vec![7; 4 << 10], folder.0.join("target"));
    let job = |index: u64| Job { source: 0, target: index << 12, first: 0, count: 4 << 10, cast: None };
    let arrived = |bytes: usize| fs::read(&to).is_ok_and(|found| found.len() == bytes && !found.contains(&0));
    for tuning in tunings() {
        fs::write(folder.0.join("source"), &source).unwrap();
        let (from, target) = (File::open(folder.0.join("source")).unwrap(), File::create(&to).unwrap());
        let begin = Instant::now();
        // A batch is made only when those before it are in the target; the third is an error.
        let batches = (0..).map(|number| {
            while !arrived(number << 14) {
                assert!(
                    begin.elapsed() < Duration::from_secs(60),
                    "batch {number} waits for those before it"
                );
                thread::yield_now();
            }
            if number == 3 {
                Err("made wrongly")
            } else {
                Ok((0..4).map(|index| job(4 * number as u64 + index)).collect())
            }
        });
        let outcome = convert_tensors(&from, &target, batches, tuning, |_| Ok(()));
        assert_eq!(outcome.err(), Some("made wrongly"));
        assert!(arrived(3 << 14));
    }
}

#[test]
fn no_more_jobs_are_asked_for_after_a_failure() {
    let folder = Folder::new("failure");
    let (source, to) = (folder.0.join("source"), File::create(folder.0.join("target")).unwrap());
    fs::write(&source, [7; 5000]).unwrap();
    let from = File::open(source).unwrap();
    let job = |index| Job { source: index, target: index, first: 0, count: 1, cast: None };
    for tuning in tunings() {
        // Batches without an end: the file has one.
        let batches =
            (0..).map(|number| Ok::<_, Infallible>((100 * number..100 * (number + 1)).map(job).collect()));
        let outcome = convert_tensors(&from, &to, batches, tuning, |_| Ok(())).unwrap();
        assert!(matches!(outcome, Err(Failure::Read(5000, _))), "{tuning:?}");
    }
}
