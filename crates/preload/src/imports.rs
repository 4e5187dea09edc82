//! What code in a scope of its own imports, led to our functions.
//!
//! A library that is opened with `RTLD_DEEPBIND` finds functions in the libraries that it names before any that were
//! there already, so its calls go to the C library and not to us. Once it has been opened, each of its imports (and of
//! the libraries that came with it) that has found the C library's function gets ours instead, which is what it would
//! have found without the flag. Formats: System V ABI, AMD64 supplement.

use core::ffi::{CStr, c_int, c_void};
use core::ops::ControlFlow::{self, Break, Continue};
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use libc::{Elf64_Phdr, Elf64_Rela, Elf64_Sym, dl_phdr_info};
use std::collections::{BTreeMap, BTreeSet};
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
const DT_TEXTREL: u64 = 22;
const DT_JMPREL: u64 = 23;
const DT_FLAGS: u64 = 30;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// A place in data that holds an address.
const R_X86_64_64: u64 = 1;
/// A place in the table of addresses.
const R_X86_64_GLOB_DAT: u64 = 6;
/// The same for calls. Until its first call it may hold an address of the object's own.
const R_X86_64_JUMP_SLOT: u64 = 7;
const DF_TEXTREL: usize = 4;
const PAGE: usize = 4096;
/// Data that is looked through at a time, in words.
const WORDS: usize = 8192;
/// An object with more data in one part is not looked through, in bytes.
const MUCH_DATA: usize = 64 << 20;

/// A function that the C library has and we have too.
#[derive(Clone, Copy)]
struct Function {
    theirs: usize,
    ours: usize,
}

/// The objects that are loaded; `None` if that could not be found out.
pub(crate) struct Loaded(Option<BTreeSet<*const Elf64_Phdr>>);

impl Loaded {
    /// Now.
    pub(crate) fn now() -> Self {
        // SAFETY: only where they are is kept.
        let all = unsafe { objects() };
        Self(all.map(|all| all.iter().map(|object| object.headers.as_ptr()).collect()))
    }

    /// Leads what the libraries import to us that have come since, which is to say with `handle`: no other thread may
    /// be there, which might load or unload any. False if some of it cannot be, and then none of it is unless the
    /// kernel refuses; or if none has come: what was there before may be asked for functions by name.
    pub(crate) fn lead_others_here(&self, handle: *mut c_void) -> bool {
        // SAFETY: those that are used have come with the handle, or are opened for good by those that have; nobody is
        // there to close them.
        let (Some(before), Some(mut new)) = (&self.0, unsafe { objects() }) else {
            return false;
        };
        new.retain(|object| !before.contains(&object.headers.as_ptr()));
        let places = places_to_change(&new, handle);
        // Whatever was not found is no error of the program's.
        // SAFETY: forgets what the last look-up has left.
        unsafe { libc::dlerror() };
        !new.is_empty() && places.is_ok_and(|places| places.iter().all(Place::change))
    }
}

/// There is a call that goes past us.
pub(crate) struct CannotBeLed;

/// The places of these objects that are to be led to us.
fn places_to_change(objects: &[Object<'_>], handle: *mut c_void) -> Result<Vec<Place>, CannotBeLed> {
    let (own, mut known, mut places) = (own_functions(), BTreeMap::new(), Vec::new());
    if own.is_empty() {
        return Err(CannotBeLed);
    }
    let mut addresses = BTreeSet::new();
    for object in objects {
        let Some(tables) = object.tables() else { continue };
        // The loader has written to its code, and may have led calls elsewhere in ways that are not known here.
        if tables.writes_to_text {
            return Err(CannotBeLed);
        }
        for import in object.imports(&tables) {
            let Some(ours) = own.get(import.name) else { continue };
            let theirs = *known.entry(import.name).or_insert_with(|| theirs(handle, import.name));
            if let Some(theirs) = theirs {
                addresses.insert(theirs);
                places.extend(object.place_to_change(&import, Function { theirs, ours: *ours })?);
            }
        }
    }
    // A constructor may have kept one, in data of its own, after the loader had filled in all imports.
    let changed: BTreeSet<usize> = places.iter().map(|place| place.place).collect();
    for object in objects {
        if !object.places_that_hold(&addresses)?.is_subset(&changed) {
            return Err(CannotBeLed);
        }
    }
    Ok(places)
}

/// What the libraries opened by `handle` find of a name of ours, if that is what we stand before: the C library's, as a
/// rule.
fn theirs(handle: *mut c_void, name: &CStr) -> Option<usize> {
    // SAFETY: valid handles and a C string.
    let [next, found] = unsafe { [libc::RTLD_NEXT, handle].map(|place| libc::dlsym(place, name.as_ptr())) };
    let is_theirs = found == next || object_of(found) == object_of(libc::gnu_get_libc_version as *const c_void);
    (!found.is_null() && is_theirs).then_some(found as usize)
}

/// Where the object is loaded that has this address.
pub(crate) fn object_of(address: *const c_void) -> Option<usize> {
    let mut place = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: a place for the answer, which has been filled where there is one.
    unsafe { (libc::dladdr(address, place.as_mut_ptr()) != 0).then(|| place.assume_init().dli_fbase as usize) }
}

/// A loaded object.
pub(crate) struct Object<'a> {
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
    /// Some of the relocations are of places that are not writable.
    writes_to_text: bool,
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
        // Buckets, number of the first symbol in the table, 64-bit words of the filter, its shift; then filter,
        // buckets, chains.
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
        let place = own_functions as *const () as usize;
        // SAFETY: this library, the only one that is used, stays loaded.
        let objects = unsafe { objects() }.unwrap_or_default();
        let own = objects
            .iter()
            .find(|object| object.loads().any(|(load, _)| load.contains(&place)));
        let Some((own, tables)) = own.and_then(|own| Some((own, own.tables()?))) else {
            return BTreeMap::new();
        };
        // SAFETY: as above.
        let mut functions = unsafe { tables.defined() };
        functions.values_mut().for_each(|value| *value += own.base);
        functions
    })
}

/// The address of a function, or of data, that an object looks for by name.
struct Import<'a> {
    name: &'a CStr,
    kind: u64,
    place: usize,
    addend: usize,
}

/// The address of an import, to be changed.
struct Place {
    place: usize,
    value: usize,
    /// The loader has made its page read-only.
    is_sealed: bool,
}

impl Place {
    /// False if it could not be.
    fn change(&self) -> bool {
        let page = self.place & !(PAGE - 1);
        let protect = |how| {
            // SAFETY: a page of the object's, which is to be as before once what it holds has been changed.
            !self.is_sealed || unsafe { libc::mprotect(page as *mut c_void, PAGE, how) } == 0
        };
        if !protect(libc::PROT_READ | libc::PROT_WRITE) {
            return false;
        }
        // SAFETY: an aligned and writable place that the loader has filled with an address.
        unsafe { AtomicUsize::from_ptr(self.place as *mut usize) }.store(self.value, Relaxed);
        protect(libc::PROT_READ)
    }
}

/// The objects that are loaded; `None` if they become more while they are looked at. Room for them is made before: who
/// asks for memory while the loader's lock is held may meet a thread, or an allocator, that has its own lock and wants
/// the loader's.
///
/// # Safety
/// Those that are used must stay loaded for that long.
unsafe fn objects<'a>() -> Option<Vec<Object<'a>>> {
    let mut count = 0;
    each_object(&mut |_| {
        count += 1;
        Continue(())
    });
    let (mut found, mut more) = (Vec::with_capacity(count), false);
    each_object(&mut |info| {
        if found.len() == count {
            more = true;
        } else {
            // SAFETY: by contract.
            found.push(unsafe { Object::new(info) });
        }
        Continue(())
    });
    (!more).then_some(found)
}

/// Shows one loaded object after the other, for as long as `act` goes on. None of them goes away meanwhile: the
/// loader's lock is held.
pub(crate) fn each_object(act: &mut dyn FnMut(&dl_phdr_info) -> ControlFlow<()>) {
    type Act<'a> = &'a mut dyn FnMut(&dl_phdr_info) -> ControlFlow<()>;
    unsafe extern "C" fn show(info: *mut dl_phdr_info, _size: usize, act: *mut c_void) -> c_int {
        // SAFETY: the loader's description of an object, valid during the call; and what was handed over below.
        let (info, act) = unsafe { (&*info, &mut *act.cast::<Act<'_>>()) };
        c_int::from(!info.dlpi_phdr.is_null() && act(info).is_break())
    }
    let mut act = act;
    // SAFETY: `show` takes what is handed over here for what it is, and only during the call.
    unsafe { libc::dl_iterate_phdr(Some(show), (&raw mut act).cast()) };
}

fn address(number: u64) -> usize {
    number as usize
}

/// Reads data as the kernel does, since an object's own code may have made some of it unreadable.
pub(crate) fn read_own(place: usize, words: &mut [usize]) -> Result<(), CannotBeLed> {
    let bytes = size_of_val(words);
    let part = |base: *mut c_void| libc::iovec {
        iov_base: base,
        iov_len: bytes,
    };
    let (here, there) = (part(words.as_mut_ptr().cast()), part(place as *mut c_void));
    // SAFETY: the kernel writes the words, and checks what it reads.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    if read == bytes.cast_signed() {
        Ok(())
    } else {
        Err(CannotBeLed)
    }
}

/// The object that this address is in, if there is one.
///
/// # Safety
/// It must stay loaded while it is used.
pub(crate) unsafe fn object_with<'a>(address: usize) -> Option<Object<'a>> {
    let mut found = None;
    each_object(&mut |info| {
        // SAFETY: nobody unloads it meanwhile.
        let object = unsafe { Object::new(info) };
        if !object.loads().any(|(load, _)| load.contains(&address)) {
            return Continue(());
        }
        found = Some(object);
        Break(())
    });
    found
}

impl Object<'_> {
    /// # Safety
    /// The loader's description of an object that stays loaded while this is used.
    unsafe fn new(info: &dl_phdr_info) -> Self {
        // SAFETY: its program headers are loaded with it.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let base = address(info.dlpi_addr);
        Self { base, headers }
    }

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
                DT_TEXTREL => tables.writes_to_text = true,
                DT_FLAGS => tables.writes_to_text |= value & DF_TEXTREL != 0,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        (tables.strings != 0 && tables.symbols != 0).then_some(tables)
    }

    /// What is defined elsewhere, and found by name.
    fn imports(&self, tables: &Tables) -> impl Iterator<Item = Import<'_>> {
        let relocations = tables.relocations.into_iter().flat_map(|(table, size)| {
            let count = if table == 0 { 0 } else { size / size_of::<Elf64_Rela>() };
            // SAFETY: within a table of the object's.
            (0..count).map(move |index| unsafe { (table as *const Elf64_Rela).add(index).read() })
        });
        relocations.filter_map(|relocation| {
            // SAFETY: the entries of the one table name symbols of the other.
            let (name, value) = unsafe { tables.symbol(address(relocation.r_info >> 32)) };
            value.is_none().then_some(Import {
                name,
                kind: relocation.r_info & u64::from(u32::MAX),
                place: self.base.wrapping_add(address(relocation.r_offset)),
                addend: relocation.r_addend.cast_unsigned() as usize,
            })
        })
    }

    /// Whether it has a function of this name for others.
    pub(crate) fn defines(&self, name: &CStr) -> bool {
        // SAFETY: it stays loaded for longer.
        self.tables()
            .is_some_and(|tables| unsafe { tables.defined() }.contains_key(name))
    }

    /// The parts of the file that are loaded, each with whether it is writable.
    pub(crate) fn loads(&self) -> impl Iterator<Item = (Range<usize>, bool)> {
        let loads = self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        loads.map(|load| (self.range(load), load.p_flags & libc::PF_W != 0))
    }

    /// The places in its data that hold one of these addresses.
    fn places_that_hold(&self, addresses: &BTreeSet<usize>) -> Result<BTreeSet<usize>, CannotBeLed> {
        let data = self.loads().filter(|(_, is_writable)| *is_writable);
        let mut held = BTreeSet::new();
        let mut words = vec![0; WORDS];
        for (load, _) in data {
            if load.len() > MUCH_DATA {
                return Err(CannotBeLed);
            }
            let first = load.start.next_multiple_of(size_of::<usize>());
            let count = load.end.saturating_sub(first) / size_of::<usize>();
            for begin in (0..count).step_by(WORDS) {
                let place = first + begin * size_of::<usize>();
                let part = words.get_mut(..WORDS.min(count - begin)).unwrap_or_default();
                read_own(place, part)?;
                let found = part.iter().enumerate().filter(|(_, word)| addresses.contains(word));
                held.extend(found.map(|(index, _)| place + index * size_of::<usize>()));
            }
        }
        Ok(held)
    }

    /// Where an import is to be changed that has found the C library's function, or would with its first call; `None`
    /// if it need not be.
    fn place_to_change(&self, import: &Import<'_>, function: Function) -> Result<Option<Place>, CannotBeLed> {
        let addend = match import.kind {
            R_X86_64_64 => import.addend,
            R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT => 0,
            // Another way to call a function.
            _ => return Err(CannotBeLed),
        };
        let (place, end) = (import.place, import.place.wrapping_add(size_of::<usize>()));
        let holds = |load: &Range<usize>| load.contains(&place) && end <= load.end;
        let is_writable = self.loads().any(|(load, is_writable)| is_writable && holds(&load));
        if !is_writable || !place.is_multiple_of(align_of::<AtomicUsize>()) {
            return Err(CannotBeLed);
        }
        // SAFETY: an aligned place that the loader has filled with an address.
        let present = unsafe { AtomicUsize::from_ptr(place as *mut usize) }.load(Relaxed);
        let present = present.wrapping_sub(addend);
        let is_lazy = import.kind == R_X86_64_JUMP_SLOT && self.loads().any(|(load, _)| load.contains(&present));
        if present != function.theirs && !is_lazy {
            // Another version of the C library's function would go past us.
            let is_theirs = object_of(present as *const c_void) == object_of(function.theirs as *const c_void);
            return if is_theirs { Err(CannotBeLed) } else { Ok(None) };
        }
        // The loader seals whole pages only.
        let page = place & !(PAGE - 1);
        let sealed = self.header(libc::PT_GNU_RELRO).map(|relro| self.range(relro));
        Ok(Some(Place {
            place,
            value: function.ours.wrapping_add(addend),
            is_sealed: sealed.is_some_and(|sealed| place >= sealed.start && page + PAGE <= sealed.end),
        }))
    }
}
