//! The searches for the scales of parts of a block, for eight parts side by side.
//!
//! Each lane is a part, whose elements are added up in their order; so lanes are what llama.cpp computes for one part at a
//! time, in `ggml/src/ggml-quants.c`: `make_qkx2_quants`, `make_qx_quants` and `make_q3_quants`; and where elements have an
//! importance, `make_qkx3_quants`, `make_qx_quants` and `make_qp_quants`.

/// Parts that are searched at a time.
pub(super) const LANES: usize = 8;
/// The most elements of a part.
const MOST: usize = 32;
/// A part with a largest magnitude below that is zero, and so is a block with a largest scale below it.
pub(super) const LEAST: f32 = 1e-15;

/// A number of each part.
pub(super) type Lanes = [f32; LANES];

/// Elements, by their places in the parts.
pub(super) type Columns = [Lanes; MOST];

const ZERO: Lanes = [0.0; LANES];

#[inline(always)]
pub(super) fn lanes(value: impl Fn(usize) -> f32) -> Lanes {
    let mut result = ZERO;
    for (lane, result) in result.iter_mut().enumerate() {
        *result = value(lane);
    }
    result
}

/// Returns the nearest integer, ties to even. Of 2**22 and more, and of NaN, it is what the addition of 3 * 2**22 makes of
/// the low bits, as in llama.cpp.
#[inline(always)]
pub(super) fn nearest(value: f32) -> i32 {
    ((value + 12_582_912.0).to_bits() & 0x7f_ffff) as i32 - 0x40_0000
}

/// Returns the code nearest to a number of steps.
#[inline(always)]
pub(super) fn nearest_code(value: f32, least: f32, most: f32) -> f32 {
    // Compared as floats, for which every x86-64 has instructions.
    let code = nearest(value) as f32;
    let code = if code > least { code } else { least };
    if code < most { code } else { most }
}

/// A search for scales and minima.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine {
    /// Bits of a code.
    pub(super) bits: u32,
    /// Elements of a part.
    pub(super) length: usize,
    /// How many more codes than there are the range is divided by at first; each step is `delta` more.
    pub(super) first: f32,
    pub(super) delta: f32,
    pub(super) steps: i32,
    /// Errors are weighted by magnitudes and not squared; else by magnitudes and their root mean square.
    pub(super) is_absolute: bool,
}

/// The scales of eight parts, their minima, and their codes.
pub(super) struct Found {
    pub(super) scales: Lanes,
    pub(super) minima: Lanes,
    pub(super) codes: Columns,
}

impl Affine {
    /// The search where elements have an importance, which is part of the weights of their errors.
    pub(super) const fn weighted(bits: u32, length: usize) -> Self {
        Self { bits, length, first: -0.9, delta: 0.05, steps: 36, is_absolute: false }
    }

    /// Returns the weights of errors of elements without an importance.
    // Here and below: called twice or more, and as quick when not inlined.
    #[inline(never)]
    pub(super) fn weights(&self, x: &Columns) -> Columns {
        let mut weights = [ZERO; MOST];
        let mut means = ZERO;
        if !self.is_absolute {
            let mut squares = ZERO;
            for column in &x[..self.length] {
                squares = lanes(|lane| squares[lane] + column[lane] * column[lane]);
            }
            means = lanes(|lane| (squares[lane] / self.length as f32).sqrt());
        }
        for (weights, column) in weights.iter_mut().zip(&x[..self.length]) {
            *weights = lanes(|lane| means[lane] + column[lane].abs());
        }
        weights
    }

    /// Returns the sum of weighted errors of codes.
    #[inline(never)]
    fn error(&self, (x, weights): Weighted<'_>, codes: &[Lanes], scales: Lanes, minima: Lanes) -> Lanes {
        let mut sum = ZERO;
        for ((x, weights), codes) in x.iter().zip(weights).zip(codes) {
            sum = lanes(|lane| {
                let difference = scales[lane] * codes[lane] + minima[lane] - x[lane];
                let size = if self.is_absolute { difference.abs() } else { difference * difference };
                sum[lane] + weights[lane] * size
            });
        }
        sum
    }

    /// Finds scales and minima: for some divisions of the range the codes, and the scale and the minimum of least squares
    /// for these codes.
    pub(super) fn search(&self, columns: &Columns, weights: &Columns) -> Found {
        let top = ((1 << self.bits) - 1) as f32;
        let (x, weights) = (&columns[..self.length], &weights[..self.length]);
        let (mut least, mut most, mut sum_w) = (x[0], x[0], weights[0]);
        let mut sum_x = lanes(|lane| sum_w[lane] * x[0][lane]);
        for (x, w) in x.iter().zip(weights).skip(1) {
            least = lanes(|lane| if x[lane] < least[lane] { x[lane] } else { least[lane] });
            most = lanes(|lane| if x[lane] > most[lane] { x[lane] } else { most[lane] });
            sum_w = lanes(|lane| sum_w[lane] + w[lane]);
            sum_x = lanes(|lane| sum_x[lane] + w[lane] * x[lane]);
        }
        let least = lanes(|lane| if least[lane] > 0.0 { 0.0 } else { least[lane] });
        let mut codes = [ZERO; MOST];
        let codes = &mut codes[..self.length];
        let mut minima = least;
        let mut divisors = lanes(|lane| top / (most[lane] - minima[lane]));
        // What made the best codes.
        let (mut best_divisors, mut origins) = (divisors, minima);
        let mut scales = lanes(|lane| 1.0 / divisors[lane]);
        let mut best = ZERO;
        for step in -1..=self.steps {
            let is_first = step < 0;
            if !is_first {
                let range = self.first + self.delta * step as f32 + top;
                divisors = lanes(|lane| range / (most[lane] - minima[lane]));
            }
            let (mut sum_l, mut sum_l2, mut sum_xl) = (ZERO, ZERO, ZERO);
            for ((x, w), codes) in x.iter().zip(weights).zip(codes.iter_mut()) {
                let code = lanes(|lane| nearest_code(divisors[lane] * (x[lane] - minima[lane]), 0.0, top));
                let product = lanes(|lane| w[lane] * code[lane]);
                sum_l = lanes(|lane| sum_l[lane] + product[lane]);
                sum_l2 = lanes(|lane| sum_l2[lane] + product[lane] * code[lane]);
                sum_xl = lanes(|lane| sum_xl[lane] + product[lane] * x[lane]);
                *codes = code;
            }
            if is_first {
                best = self.error((x, weights), codes, scales, minima);
                continue;
            }
            let determinants = lanes(|lane| sum_w[lane] * sum_l2[lane] - sum_l[lane] * sum_l[lane]);
            let mut new_scales =
                lanes(|lane| (sum_w[lane] * sum_xl[lane] - sum_x[lane] * sum_l[lane]) / determinants[lane]);
            let new_minima =
                lanes(|lane| (sum_l2[lane] * sum_x[lane] - sum_l[lane] * sum_xl[lane]) / determinants[lane]);
            new_scales =
                lanes(
                    |lane| {
                        if new_minima[lane] > 0.0 { sum_xl[lane] / sum_l2[lane] } else { new_scales[lane] }
                    },
                );
            let new_minima = lanes(|lane| if new_minima[lane] > 0.0 { 0.0 } else { new_minima[lane] });
            let errors = self.error((x, weights), codes, new_scales, new_minima);
            for lane in 0..LANES {
                if determinants[lane] > 0.0 && errors[lane] < best[lane] {
                    (best_divisors[lane], origins[lane]) = (divisors[lane], minima[lane]);
                    (best[lane], scales[lane], minima[lane]) =
                        (errors[lane], new_scales[lane], new_minima[lane]);
                }
            }
        }
        let mut codes = [ZERO; MOST];
        for (codes, x) in codes.iter_mut().zip(x) {
            *codes = lanes(|lane| nearest_code(best_divisors[lane] * (x[lane] - origins[lane]), 0.0, top));
        }
        // Of parts that are constant, or zero and less, nothing is searched.
        for lane in (0..LANES).filter(|&lane| most[lane] == least[lane]) {
            (scales[lane], minima[lane]) = (0.0, least[lane]);
            for codes in &mut codes {
                codes[lane] = 0.0;
            }
        }
        Found { scales, minima: minima.map(|minimum| -minimum), codes }
    }
}

/// A search for scales of codes around zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symmetric {
    /// Half of the number of codes.
    pub(super) half: f32,
    /// Elements of a part.
    pub(super) length: usize,
    /// Codes are changed one by one; else the range is divided in some ways.
    pub(super) refines: bool,
}

impl Symmetric {
    /// Returns the weights of errors of elements without an importance.
    #[inline(never)]
    pub(super) fn weights(&self, x: &Columns) -> Columns {
        let mut weights = [ZERO; MOST];
        for (weights, x) in weights.iter_mut().zip(&x[..self.length]) {
            *weights = lanes(|lane| x[lane] * x[lane]);
        }
        weights
    }

    /// Finds scales; the least code becomes 0.
    pub(super) fn search(&self, columns: &Columns, weights: &Columns) -> Found {
        let (x, weights) = (&columns[..self.length], &weights[..self.length]);
        let (mut amax, mut extreme) = (ZERO, ZERO);
        for x in x {
            extreme = lanes(|lane| if x[lane].abs() > amax[lane] { x[lane] } else { extreme[lane] });
            amax = lanes(|lane| if x[lane].abs() > amax[lane] { x[lane].abs() } else { amax[lane] });
        }
        let (half, mut codes) = (self.half, [ZERO; MOST]);
        let search = if self.refines { refine } else { divide };
        let mut scales = search((x, weights), &mut codes, extreme, half);
        for codes in &mut codes {
            *codes = lanes(|lane| codes[lane] + half);
        }
        for lane in (0..LANES).filter(|&lane| amax[lane] < LEAST) {
            scales[lane] = 0.0;
            for codes in &mut codes {
                codes[lane] = 0.0;
            }
        }
        Found { scales, minima: ZERO, codes }
    }
}

/// Elements, and the weights of their errors.
type Weighted<'a> = (&'a [Lanes], &'a [Lanes]);

/// Makes codes, and returns the sums of weighted products with elements, and of weighted squares.
#[inline(never)]
fn sums((x, weights): Weighted<'_>, codes: &mut Columns, divisors: Lanes, half: f32) -> (Lanes, Lanes) {
    let (mut sum_lx, mut sum_l2) = (ZERO, ZERO);
    for ((x, weights), codes) in x.iter().zip(weights).zip(codes) {
        let code = lanes(|lane| nearest_code(divisors[lane] * x[lane], -half, half - 1.0));
        sum_lx = lanes(|lane| sum_lx[lane] + weights[lane] * x[lane] * code[lane]);
        sum_l2 = lanes(|lane| sum_l2[lane] + weights[lane] * code[lane] * code[lane]);
        *codes = code;
    }
    (sum_lx, sum_l2)
}

/// Takes the best of 19 divisions of the range, that without a change first, and makes its codes.
fn divide(x: Weighted<'_>, codes: &mut Columns, extreme: Lanes, half: f32) -> Lanes {
    let (mut best, mut scales, mut most) = (ZERO, ZERO, ZERO);
    for step in [0].into_iter().chain(-9..=-1).chain(1..=9) {
        let range = half + 0.1 * step as f32;
        let divisors = lanes(|lane| -range / extreme[lane]);
        let (sum_lx, sum_l2) = sums(x, codes, divisors, half);
        for lane in 0..LANES {
            let is_better = sum_l2[lane] > 0.0 && sum_lx[lane] * sum_lx[lane] > most[lane] * sum_l2[lane];
            if step == 0 || is_better {
                best[lane] = divisors[lane];
                scales[lane] = if sum_l2[lane] == 0.0 { 0.0 } else { sum_lx[lane] / sum_l2[lane] };
                most[lane] = scales[lane] * sum_lx[lane];
            }
        }
    }
    sums(x, codes, best, half);
    scales
}

/// Changes codes one by one, as long as that lowers the error, at most five times each.
fn refine((x, weights): Weighted<'_>, codes: &mut Columns, extreme: Lanes, half: f32) -> Lanes {
    let divisors = lanes(|lane| -half / extreme[lane]);
    let (mut sum_lx, mut sum_l2) = sums((x, weights), codes, divisors, half);
    for _ in 0..5 {
        let mut changes = ZERO;
        for ((x, weights), codes) in x.iter().zip(weights).zip(codes.iter_mut()) {
            let products = lanes(|lane| weights[lane] * x[lane]);
            let lx = lanes(|lane| sum_lx[lane] - products[lane] * codes[lane]);
            let l2 = lanes(|lane| sum_l2[lane] - weights[lane] * codes[lane] * codes[lane]);
            let new = lanes(|lane| nearest_code(x[lane] * l2[lane] / lx[lane], -half, half - 1.0));
            let new_lx = lanes(|lane| lx[lane] + products[lane] * new[lane]);
            let new_l2 = lanes(|lane| l2[lane] + weights[lane] * new[lane] * new[lane]);
            // 1 where a code changes.
            let taken = lanes(|lane| {
                let is_better =
                    new_lx[lane] * new_lx[lane] * sum_l2[lane] > sum_lx[lane] * sum_lx[lane] * new_l2[lane];
                let is_other = (lx[lane] > 0.0) & (new[lane] != codes[lane]);
                if is_other & (new_l2[lane] > 0.0) & is_better { 1.0 } else { 0.0 }
            });
            let take =
                |old: Lanes, new: Lanes| lanes(|lane| if taken[lane] > 0.0 { new[lane] } else { old[lane] });
            *codes = take(*codes, new);
            (sum_lx, sum_l2) = (take(sum_lx, new_lx), take(sum_l2, new_l2));
            changes = lanes(|lane| changes[lane] + taken[lane]);
        }
        if changes == ZERO {
            break;
        }
    }
    lanes(|lane| if sum_l2[lane] > 0.0 { sum_lx[lane] / sum_l2[lane] } else { 0.0 })
}

/// Finds one scale of some numbers that are not negative, of parts with weights, and their codes up to `top`.
///
/// Codes are bytes, which negative numbers wrap.
pub(super) fn scale_of_scales(x: &[f32], weights: &[f32], codes: &mut [u8], top: i32) -> f32 {
    codes.fill(0);
    let most = x.iter().fold(0f32, |most, &x| if x > most { x } else { most });
    if most < LEAST {
        return 0.0;
    }
    let rows = || x.iter().zip(weights);
    let error = |scale: f32, code_of: &dyn Fn(f32) -> i32| {
        rows().fold(0f32, |sum, (&x, weight)| {
            let difference = x - scale * code_of(x) as f32;
            sum + weight * difference * difference
        })
    };
    let mut divisor = top as f32 / most;
    let mut least = error(1.0 / divisor, &|x| i32::from(nearest(divisor * x) as u8));
    for step in (-4..=-1).chain(1..=4) {
        let other = (0.1 * step as f32 + top as f32) / most;
        let error = error(1.0 / other, &|x| nearest(other * x).min(top));
        if error < least {
            (least, divisor) = (error, other);
        }
    }
    let (mut sum_lx, mut sum_l2) = (0f32, 0f32);
    for ((x, weight), code) in rows().zip(codes.iter_mut()) {
        let number = nearest(divisor * x).min(top);
        sum_lx += weight * x * number as f32;
        sum_l2 += weight * number as f32 * number as f32;
        *code = number as u8;
    }
    for _ in 0..5 {
        let mut has_changed = false;
        for ((x, weight), code) in rows().zip(codes.iter_mut()) {
            let old = f32::from(*code);
            let (mut lx, mut l2) = (sum_lx - weight * x * old, sum_l2 - weight * old * old);
            if !(lx > 0.0 && l2 > 0.0) {
                continue;
            }
            let number = nearest(x * l2 / lx).min(top);
            if number == i32::from(*code) {
                continue;
            }
            lx += weight * x * number as f32;
            l2 += weight * number as f32 * number as f32;
            if lx * lx * sum_l2 > sum_lx * sum_lx * l2 {
                (*code, sum_lx, sum_l2, has_changed) = (number as u8, lx, l2, true);
            }
        }
        if !has_changed {
            break;
        }
    }
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}
