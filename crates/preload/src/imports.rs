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
use std::sync::OnceLock;

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
const DT_GNU_HASH: u64 = 0x6fff_fef5;
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

    /// Leads what the libraries import to us that have come since, which is to say with `handle`: no other thread may be loading any, which the
    /// loader might still be working on. False if some of it could not be, or none has come: what was there before may be asked for functions by name.
    pub(crate) fn lead_others_here(&self, handle: *mut c_void) -> bool {
        let (own, mut names, mut all) = (own_functions(), BTreeSet::new(), false);
        self.each_new(&mut |object| {
            all = true;
            object.each_import(
                |name| own.contains_key(name),
                |import| {
                    names.insert(import.name.to_owned());
                },
            );
        });
        // Not while the loader's lock is held: to look a name up takes another one.
        let functions: BTreeMap<CString, Function> = names
            .into_iter()
            .filter_map(|name| {
                let (ours, theirs) = (*own.get(&*name)?, theirs(handle, &name)?);
                Some((name, Function { theirs, ours }))
            })
            .collect();
        // Whatever was not found is no error of the program's.
        // SAFETY: forgets what the last of these calls has left.
        unsafe { libc::dlerror() };
        self.each_new(&mut |object| {
            object.each_import(
                |name| functions.contains_key(name),
                |import| {
                    if let Some(function) = functions.get(import.name) {
                        all &= object.lead_here(&import, *function);
                    }
                },
            );
        });
        all
    }

    /// Shows the objects that have come since.
    fn each_new(&self, act: &mut dyn FnMut(&Object<'_>)) {
        each_object(&mut |object| {
            if !self.0.contains(&object.headers.as_ptr()) {
                act(object);
            }
        });
    }
}

/// What the libraries opened by `handle` find of a name of ours, if that is what we stand before: the C library's, as a rule.
fn theirs(handle: *mut c_void, name: &CStr) -> Option<usize> {
    // SAFETY: valid handles and a C string.
    let [next, found] = unsafe { [libc::RTLD_NEXT, handle].map(|place| libc::dlsym(place, name.as_ptr())) };
    let is_theirs = found == next || object_of(found) == object_of(libc::gnu_get_libc_version as *const c_void);
    (!found.is_null() && is_theirs).then_some(found as usize)
}

/// Where the object is loaded that has this address.
fn object_of(address: *const c_void) -> Option<usize> {
    let mut place = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: a place for the answer, which has been filled where there is one.
    unsafe { (libc::dladdr(address, place.as_mut_ptr()) != 0).then(|| place.assume_init().dli_fbase as usize) }
}

/// A loaded object.
struct Object<'a> {
    /// What its addresses count from.
    base: usize,
    headers: &'a [Elf64_Phdr],
}

/// Where an object's tables are.
#[derive(Default)]
struct Tables {
    strings: usize,
    symbols: usize,
    hash: usize,
    /// Each with its length in bytes.
    relocations: [(usize, usize); 2],
}

impl Tables {
    /// A symbol's name, and where it is defined in this object, counted from its base.
    ///
    /// # Safety
    /// There must be a symbol with this number, and the object must stay loaded while the name is used.
    unsafe fn symbol<'a>(&self, number: usize) -> (&'a CStr, Option<usize>) {
        // SAFETY: by contract; symbols name strings of the same object.
        unsafe {
            let symbol = (self.symbols as *const Elf64_Sym).add(number).read();
            let name = (self.strings as *const libc::c_char).add(symbol.st_name as usize);
            let value = (symbol.st_shndx != 0).then_some(address(symbol.st_value));
            (CStr::from_ptr(name), value)
        }
    }

    /// What is defined here, as [`symbol`](Self::symbol) has it.
    ///
    /// # Safety
    /// The object must stay loaded while the names are used.
    unsafe fn defined<'a>(&self) -> BTreeMap<&'a CStr, usize> {
        let word = |index: usize| {
            // SAFETY: within the hash table, as its head and the chains below tell.
            unsafe { (self.hash as *const u32).add(index).read() as usize }
        };
        if self.hash == 0 {
            return BTreeMap::new();
        }
        // Buckets, number of the first symbol in the table, 64-bit words of the filter, its shift; then filter, buckets, chains.
        let (buckets, first, filter) = (word(0), word(1), word(2));
        let chains = 4 + 2 * filter + buckets;
        let mut last = (0..buckets)
            .map(|bucket| word(4 + 2 * filter + bucket))
            .max()
            .unwrap_or(0);
        if last < first {
            return BTreeMap::new();
        }
        // The lowest bit ends a chain, and the last chain the table.
        while word(chains + last - first) & 1 == 0 {
            last += 1;
        }
        // SAFETY: all of these are in the table.
        let symbols = (first..=last).map(|number| unsafe { self.symbol(number) });
        symbols.filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// Our functions by name.
fn own_functions() -> &'static BTreeMap<&'static CStr, usize> {
    static FUNCTIONS: OnceLock<BTreeMap<&'static CStr, usize>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let (mut functions, place) = (BTreeMap::new(), own_functions as *const () as usize);
        each_object(&mut |object| {
            let mut loads = object.headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
            if loads.any(|load| object.range(load).contains(&place))
                && let Some(tables) = object.tables()
            {
                // SAFETY: this library stays loaded.
                functions = unsafe { tables.defined() };
                functions.values_mut().for_each(|value| *value += object.base);
            }
        });
        functions
    })
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
            let base = address(info.dlpi_addr);
            act(&Object { base, headers });
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

    /// What the dynamic section tells; `None` for an object that has none, or no symbols.
    fn tables(&self) -> Option<Tables> {
        let mut tables = Tables::default();
        let mut entry = self.range(self.header(libc::PT_DYNAMIC)?).start as *const Entry;
        // SAFETY: the dynamic section of a loaded object, up to the entry that ends it.
        while let Entry { tag, value } = unsafe { entry.read() }
            && tag != DT_NULL
        {
            let value = address(value);
            // The loader has made addresses of the offsets, as a rule.
            let place = if value < self.base { value + self.base } else { value };
            match tag {
                DT_STRTAB => tables.strings = place,
                DT_SYMTAB => tables.symbols = place,
                DT_GNU_HASH => tables.hash = place,
                DT_RELA => tables.relocations[0].0 = place,
                DT_RELASZ => tables.relocations[0].1 = value,
                DT_JMPREL => tables.relocations[1].0 = place,
                DT_PLTRELSZ => tables.relocations[1].1 = value,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        (tables.strings != 0 && tables.symbols != 0).then_some(tables)
    }

    /// Shows every import of a name that `concerns`.
    fn each_import(&self, concerns: impl Fn(&CStr) -> bool, mut act: impl FnMut(Import<'_>)) {
        let Some(tables) = self.tables() else { return };
        for (table, size) in tables.relocations {
            for index in 0..if table == 0 { 0 } else { size / size_of::<Elf64_Rela>() } {
                // SAFETY: within a table of the object's, whose entries name symbols of its other table.
                let (relocation, (name, value)) = unsafe {
                    let relocation = (table as *const Elf64_Rela).add(index).read();
                    (relocation, tables.symbol(address(relocation.r_info >> 32)))
                };
                let kind = relocation.r_info & u64::from(u32::MAX);
                let holds_address = matches!(kind, R_X86_64_64 | R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT);
                if holds_address && value.is_none() && concerns(name) {
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
        if !import.place.is_multiple_of(align_of::<AtomicUsize>()) {
            return false;
        }
        // SAFETY: an aligned place that the loader has filled with an address, and that threads may read meanwhile.
        let place = unsafe { AtomicUsize::from_ptr(import.place as *mut usize) };
        let present = place.load(Relaxed).wrapping_sub(import.addend);
        let mut loads = self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let is_lazy = import.is_call && loads.any(|load| self.range(load).contains(&present));
        if present != function.theirs && !is_lazy {
            // Another version of the C library's function would go past us.
            return object_of(present as *const c_void) != object_of(function.theirs as *const c_void);
        }
        // The loader seals whole pages only.
        let page = import.place & !(PAGE - 1);
        let sealed = self.header(libc::PT_GNU_RELRO).map(|relro| self.range(relro));
        let sealed = sealed.is_some_and(|sealed| import.place >= sealed.start && page + PAGE <= sealed.end);
        let protect = |how| {
            // SAFETY: a page of the object's, which is to be as before once what it holds has been changed.
            !sealed || unsafe { libc::mprotect(page as *mut c_void, PAGE, how) } == 0
        };
        if !protect(libc::PROT_READ | libc::PROT_WRITE) {
            return false;
        }
        place.store(function.ours.wrapping_add(import.addend), Relaxed);
        protect(libc::PROT_READ)
    }
}
