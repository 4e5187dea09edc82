//! What code in a scope of its own imports, led to our functions.
//!
//! A library that is opened with `RTLD_DEEPBIND` finds functions in the libraries that it names before any that were there already, so its calls go
//! to the C library and not to us. Once it has been opened, each of its imports (and of the libraries that came with it) that has found the C
//! library's function gets ours instead, which is what it would have found without the flag. Formats: System V ABI, AMD64 supplement.

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use libc::{Elf64_Phdr, Elf64_Rela, Elf64_Sym, dl_phdr_info};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

/// An entry of a dynamic section.
#[repr(C)]
struct Entry {
    tag: u64,
    value: u64,
}

const DT_NULL: u64 = 0;
const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
/// A place in data that holds an address.
const R_X86_64_64: u64 = 1;
/// A place in the table of addresses.
const R_X86_64_GLOB_DAT: u64 = 6;
/// The same for calls. Until its first call it may hold an address of the object's own.
const R_X86_64_JUMP_SLOT: u64 = 7;
const PAGE: usize = 4096;

/// A function that the C library has and we have too.
#[derive(Clone, Copy)]
struct Function {
    theirs: usize,
    ours: usize,
}

/// The objects that are loaded.
pub(crate) struct Loaded(BTreeSet<*const Elf64_Phdr>);

impl Loaded {
    /// Now.
    pub(crate) fn now() -> Self {
        let mut all = BTreeSet::new();
        each_object(&mut |object| {
            all.insert(object.headers.as_ptr());
        });
        Self(all)
    }

    /// Leads the imports of all objects that have come since to us, which have been opened by `handle`. False if some could not be.
    pub(crate) fn lead_others_here(&self, handle: *mut c_void) -> bool {
        let mut names = BTreeSet::new();
        self.each_new(&mut |object| {
            object.each_import(|import| {
                names.insert(import.name.to_owned());
            });
        });
        // Not while the loader's lock is held: to look a name up takes another one.
        let functions: BTreeMap<CString, Function> = names
            .into_iter()
            .filter_map(|name| function(handle, &name).map(|function| (name, function)))
            .collect();
        let mut all = true;
        self.each_new(&mut |object| {
            object.each_import(|import| {
                if let Some(function) = functions.get(import.name) {
                    all &= object.lead_here(&import, *function);
                }
            });
        });
        all
    }

    fn each_new(&self, act: &mut dyn FnMut(&Object<'_>)) {
        each_object(&mut |object| {
            if !self.0.contains(&object.headers.as_ptr()) {
                act(object);
            }
        });
    }
}

/// What we have of this name, where the libraries opened by `handle` would find the C library's.
fn function(handle: *mut c_void, name: &CStr) -> Option<Function> {
    // SAFETY: valid handles and C strings, and a place for the answer; an address is asked for that has been found.
    unsafe {
        let ours = libc::dlsym(own_handle()?, name.as_ptr());
        let theirs = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        let mut place: libc::Dl_info = core::mem::zeroed();
        let both = !ours.is_null() && !theirs.is_null() && libc::dlsym(handle, name.as_ptr()) == theirs;
        let is_ours = both && libc::dladdr(ours, &raw mut place) != 0 && place.dli_fbase as usize == own_base();
        is_ours.then_some(Function {
            theirs: theirs as usize,
            ours: ours as usize,
        })
    }
}

/// Where this library is loaded.
fn own_base() -> usize {
    own_place().map_or(0, |place| place.dli_fbase as usize)
}

fn own_place() -> Option<libc::Dl_info> {
    // SAFETY: an address of ours, and a place for the answer.
    unsafe {
        let mut place: libc::Dl_info = core::mem::zeroed();
        (libc::dladdr(own_place as *const c_void, &raw mut place) != 0).then_some(place)
    }
}

/// A handle of this library, which stays loaded.
fn own_handle() -> Option<*mut c_void> {
    static HANDLE: AtomicUsize = AtomicUsize::new(0);
    let known = HANDLE.load(Relaxed);
    if known != 0 {
        return Some(known as *mut c_void);
    }
    let open = super::scopes::real_dlopen();
    // SAFETY: the C library's `dlopen`, with the name that it has for this library.
    let handle = unsafe { open(own_place()?.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    HANDLE.store(handle as usize, Relaxed);
    (!handle.is_null()).then_some(handle)
}

/// A loaded object.
struct Object<'a> {
    /// What its addresses count from.
    base: usize,
    headers: &'a [Elf64_Phdr],
}

/// A place for the address of a function that is defined elsewhere.
struct Import<'a> {
    name: &'a CStr,
    place: usize,
    addend: usize,
    is_call: bool,
}

/// Shows every loaded object, none of which goes away meanwhile.
fn each_object(act: &mut dyn FnMut(&Object<'_>)) {
    unsafe extern "C" fn show(info: *mut dl_phdr_info, _size: usize, act: *mut c_void) -> c_int {
        // SAFETY: the loader's description of an object, valid during the call; and what was handed over below.
        let (info, act) = unsafe { (&*info, &mut *act.cast::<&mut dyn FnMut(&Object<'_>)>()) };
        if !info.dlpi_phdr.is_null() {
            // SAFETY: the object's program headers, which are loaded with it.
            let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
            act(&Object {
                base: address(info.dlpi_addr),
                headers,
            });
        }
        0
    }
    let mut act = act;
    // SAFETY: `show` takes what is handed over here for what it is, and only during the call.
    unsafe { libc::dl_iterate_phdr(Some(show), (&raw mut act).cast()) };
}

fn address(number: u64) -> usize {
    number as usize
}

impl Object<'_> {
    /// The part of memory that a header describes.
    fn range(&self, header: &Elf64_Phdr) -> Range<usize> {
        let start = self.base.wrapping_add(address(header.p_vaddr));
        start..start.wrapping_add(address(header.p_memsz))
    }

    fn header(&self, kind: u32) -> Option<&Elf64_Phdr> {
        self.headers.iter().find(|header| header.p_type == kind)
    }

    /// Shows every import.
    fn each_import(&self, mut act: impl FnMut(Import<'_>)) {
        let Some(dynamic) = self.header(libc::PT_DYNAMIC) else {
            return;
        };
        let (mut strings, mut symbols, mut tables, mut sizes) = (0, 0, [0; 2], [0; 2]);
        let mut entry = self.range(dynamic).start as *const Entry;
        // SAFETY: the dynamic section of a loaded object, up to the entry that ends it.
        while let Entry { tag, value } = unsafe { entry.read() }
            && tag != DT_NULL
        {
            // The loader has made addresses of the offsets, as a rule.
            let place = if address(value) < self.base {
                address(value) + self.base
            } else {
                address(value)
            };
            match tag {
                DT_STRTAB => strings = place,
                DT_SYMTAB => symbols = place,
                DT_RELA => tables[0] = place,
                DT_RELASZ => sizes[0] = address(value),
                DT_JMPREL => tables[1] = place,
                DT_PLTRELSZ => sizes[1] = address(value),
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        if strings == 0 || symbols == 0 {
            return;
        }
        for (table, size) in tables.into_iter().zip(sizes) {
            for index in 0..if table == 0 { 0 } else { size / size_of::<Elf64_Rela>() } {
                // SAFETY: within a table of the object's, whose entries name symbols of its table, and these strings of its strings.
                let (relocation, symbol, name) = unsafe {
                    let relocation = (table as *const Elf64_Rela).add(index).read();
                    let symbol = (symbols as *const Elf64_Sym)
                        .add(address(relocation.r_info >> 32))
                        .read();
                    let name = CStr::from_ptr((strings as *const libc::c_char).add(symbol.st_name as usize));
                    (relocation, symbol, name)
                };
                let kind = relocation.r_info & u64::from(u32::MAX);
                let holds_address = matches!(kind, R_X86_64_64 | R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT);
                if holds_address && symbol.st_shndx == 0 && !name.is_empty() {
                    act(Import {
                        name,
                        place: self.base.wrapping_add(address(relocation.r_offset)),
                        addend: if kind == R_X86_64_64 {
                            relocation.r_addend.cast_unsigned() as usize
                        } else {
                            0
                        },
                        is_call: kind == R_X86_64_JUMP_SLOT,
                    });
                }
            }
        }
    }

    /// Leads an import to us that has found the C library's function, or would with its first call. False if it could not be.
    fn lead_here(&self, import: &Import<'_>, function: Function) -> bool {
        // SAFETY: a place that the loader has filled with an address, which threads may read meanwhile.
        let place = unsafe { AtomicUsize::from_ptr(import.place as *mut usize) };
        let present = place.load(Relaxed).wrapping_sub(import.addend);
        let loads = self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let is_lazy = import.is_call && loads.into_iter().any(|load| self.range(load).contains(&present));
        if present != function.theirs && !is_lazy {
            return true;
        }
        let sealed = self
            .header(libc::PT_GNU_RELRO)
            .is_some_and(|relro| self.range(relro).contains(&import.place));
        let page = (import.place & !(PAGE - 1)) as *mut c_void;
        let protect = |how| {
            // SAFETY: a page of the object's data, of which nothing but what it was to hold is changed.
            !sealed || unsafe { libc::mprotect(page, PAGE, how) } == 0
        };
        if !protect(libc::PROT_READ | libc::PROT_WRITE) {
            return false;
        }
        place.store(function.ours.wrapping_add(import.addend), Relaxed);
        protect(libc::PROT_READ)
    }
}
