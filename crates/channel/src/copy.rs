//! Copies of bytes into and out of shared memory.
//!
//! Short ones, and most of the long ones, are the C library's. It copies long runs by `rep movsb`, which on AMD's
//! processors that have it fast (Zen 3 and 4) falls to a twentieth of its speed where the destination lies a few bytes
//! behind the source, counted modulo a page: 14 Gbit/s instead of 300, 4096 bytes at a distance of 1 to 31 (glibc's bug
//! 30994). Buffers from `malloc` begin 16 bytes behind a page when they are long, and blocks of a lane at one, so that
//! programs meet this more often than by chance.

use core::ptr;

/// As of [`ptr::copy_nonoverlapping`], fast at any distance.
///
/// # Safety
/// As of [`ptr::copy_nonoverlapping`] for bytes.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= vectors::LEAST && vectors::are_better(from, to) {
        // SAFETY: by this function's contract, and the processor has them.
        return unsafe { vectors::copy(from, to, len) };
    }
    // SAFETY: by this function's contract.
    unsafe { ptr::copy_nonoverlapping(from, to, len) };
}

/// Copies whole lines of the destination past the cache, what is before and behind them as usual.
///
/// # Safety
/// As of [`ptr::copy_nonoverlapping`] for bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(never)]
pub(crate) unsafe fn copy_past_cache(from: *const u8, to: *mut u8, len: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    /// Bytes of a cache line, which are stored past the cache whole or not at all.
    const LINE: usize = 64;
    let before = to.align_offset(LINE).min(len);
    let whole = (len - before) / LINE * LINE;
    // SAFETY: all offsets are at most `len`; `to + before` is aligned to a line where there is a whole one, and so
    // to each vector in it. Reads need no alignment.
    unsafe {
        ptr::copy_nonoverlapping(from, to, before);
        for line in (before..before + whole).step_by(LINE) {
            let (source, target) = (from.add(line).cast::<__m128i>(), to.add(line).cast::<__m128i>());
            let vectors = [0, 1, 2, 3].map(|i| _mm_loadu_si128(source.add(i)));
            for (i, vector) in vectors.into_iter().enumerate() {
                _mm_stream_si128(target.add(i), vector);
            }
        }
        let behind = before + whole;
        ptr::copy_nonoverlapping(from.add(behind), to.add(behind), len - behind);
    }
}

/// Where the processor has no such stores: as usual.
///
/// # Safety
/// As of [`ptr::copy_nonoverlapping`] for bytes.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn copy_past_cache(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: by this function's contract.
    unsafe { ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vectors {
    use core::arch::x86_64::{__cpuid, __m256i, _mm256_loadu_si256, _mm256_store_si256, _mm256_storeu_si256};
    use core::sync::atomic::Ordering::Relaxed;

    use crate::sync::AtomicU64;

    /// No C library copies less by `rep movsb` on these processors.
    pub(super) const LEAST: usize = 2048;
    /// Bytes behind the source, modulo a page, from which on `rep movsb` is fast again.
    const NEAR: usize = 64;
    const PAGE: usize = 4096;
    const VECTOR: usize = size_of::<__m256i>();

    /// Whether this processor is of those with the slow case, once it is known.
    static KIND: AtomicU64 = AtomicU64::new(UNKNOWN);
    const UNKNOWN: u64 = 0;
    const SLOW_WHERE_NEAR: u64 = 1;
    const OTHER: u64 = 2;

    #[inline(always)]
    pub(super) fn are_better(from: *const u8, to: *mut u8) -> bool {
        let behind = to.addr().wrapping_sub(from.addr()) % PAGE;
        behind.wrapping_sub(1) < NEAR - 1 && is_slow_where_near()
    }

    fn is_slow_where_near() -> bool {
        match KIND.load(Relaxed) {
            UNKNOWN => find_out(),
            kind => kind == SLOW_WHERE_NEAR,
        }
    }

    #[cold]
    fn find_out() -> bool {
        let maker = __cpuid(0);
        let name = [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes);
        let slow = name.as_flattened() == b"AuthenticAMD" && is_x86_feature_detected!("avx2");
        KIND.store(if slow { SLOW_WHERE_NEAR } else { OTHER }, Relaxed);
        slow
    }

    /// Copies at least [`LEAST`] bytes by vectors.
    ///
    /// # Safety
    /// As of [`core::ptr::copy_nonoverlapping`] for bytes.
    #[target_feature(enable = "avx2")]
    #[inline(never)]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        /// Vectors of a round.
        const ROUND: usize = 4;
        debug_assert!(len >= LEAST);
        // Whole vectors of the destination; the two at its ends, which reach into these, come last.
        let first = VECTOR - to.addr() % VECTOR;
        let end = len - VECTOR;
        // SAFETY: all places are at most `end`, and a vector is within `len` there; `to + at` is aligned to one.
        unsafe {
            let load = |at: usize| _mm256_loadu_si256(from.add(at).cast());
            let ends = [load(0), load(end)];
            let mut at = first;
            while at + ROUND * VECTOR <= len {
                let round = [0, 1, 2, 3].map(|i| load(at + i * VECTOR));
                for (i, vector) in round.into_iter().enumerate() {
                    _mm256_store_si256(to.add(at + i * VECTOR).cast(), vector);
                }
                at += ROUND * VECTOR;
            }
            while at <= end {
                _mm256_store_si256(to.add(at).cast(), load(at));
                at += VECTOR;
            }
            _mm256_storeu_si256(to.cast(), ends[0]);
            _mm256_storeu_si256(to.add(end).cast(), ends[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All distances within a page at which anything could differ, and lengths around the least.
    #[test]
    fn every_byte_is_copied_at_any_distance() {
        let bytes: Vec<u8> = (0..3 * 4096_u32).map(|i| (i * 7 / 3).to_le_bytes()[0]).collect();
        for distance in (0..80).chain([4064, 4095]) {
            for len in [0, 1, 31, 2047, 2048, 2049, 2111, 4000, 4096, 4097] {
                for start in [0, 1, 16, 33] {
                    let mut target = vec![0; 4 * 4096];
                    let page = target.as_ptr().align_offset(4096);
                    let source = &bytes[bytes.as_ptr().align_offset(4096) + start..][..len];
                    let place = &mut target[page + (start + distance) % 4096..];
                    // SAFETY: both have `len` bytes.
                    unsafe { copy(source.as_ptr(), place.as_mut_ptr(), len) };
                    assert_eq!(&place[..len], source, "{len} bytes from {start}, {distance} behind");
                    assert!(place[len..].iter().all(|byte| *byte == 0));
                    let before = page + (start + distance) % 4096;
                    assert!(target[..before].iter().all(|byte| *byte == 0));
                }
            }
        }
    }
}
