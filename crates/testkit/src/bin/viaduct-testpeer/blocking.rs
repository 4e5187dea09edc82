//! Connections with a thread for each direction.

use crate::Peer;
use crate::calls::{self, Received};
use crate::options::Common;
use crate::stream::{End, HELLO_LEN, Hello, Incoming, Outgoing, Progress, streams};
use nix::errno::Errno;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub(crate) fn connect(peer: &Arc<Peer>, streams: Vec<(TcpStream, Hello)>) {
    let threads: Vec<_> = streams
        .into_iter()
        .map(|(stream, hello)| {
            let peer = Arc::clone(peer);
            thread::spawn(move || {
                let mut first = &stream;
                let progress = peer.watch(hello.seed);
                if let Err(error) = first.write_all(&hello.encode()) {
                    progress.note(End::Reset, error.to_string());
                    return peer.finished(&progress);
                }
                run(&peer, &stream, &hello, true, &progress);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

pub(crate) fn listen(peer: &Arc<Peer>, listener: &TcpListener) -> std::io::Result<()> {
    loop {
        let (stream, _) = match listener.accept() {
            Ok(accepted) => accepted,
            // Out of descriptors: those of connections that end come back.
            Err(_) => {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
        };
        let peer = Arc::clone(peer);
        thread::Builder::new().stack_size(256 << 10).spawn(move || {
            let mut bytes = [0; HELLO_LEN];
            let mut first = &stream;
            if first.read_exact(&mut bytes).is_err() {
                return;
            }
            match Hello::decode(&bytes) {
                Some(hello) => {
                    let progress = peer.watch(hello.seed);
                    run(&peer, &stream, &hello, false, &progress);
                }
                None => peer.nonsense(),
            }
        })?;
    }
}

fn run(peer: &Peer, stream: &TcpStream, hello: &Hello, connecting: bool, progress: &Progress) {
    let common = &peer.common;
    let (outgoing, incoming) = streams(hello, connecting, common.max_chunk);
    thread::scope(|scope| {
        let sending = thread::Builder::new()
            .stack_size(256 << 10)
            .spawn_scoped(scope, || send_all(stream, outgoing, common, progress));
        if let Err(error) = sending {
            progress.note(End::Reset, error.to_string());
        }
        receive_all(stream, incoming, common, progress);
    });
    peer.finished(progress);
}

fn send_all(stream: &TcpStream, mut outgoing: Outgoing, common: &Common, progress: &Progress) {
    let mut random = calls::order(progress.seed, common.seed);
    let mut buffer = vec![0; usize::try_from(common.max_chunk).unwrap_or(1 << 16)];
    while let Some(chunk) = outgoing.next(&mut random, &mut buffer) {
        match calls::send(stream.as_fd(), chunk, &mut random) {
            Ok(count) => outgoing.sent(count, progress),
            Err(Errno::EINTR) => {}
            Err(error) => return progress.note(End::Reset, format!("send: {error}")),
        }
    }
    thread::sleep(Duration::from_millis(common.hold_ms));
    if let Err(error) = stream.shutdown(Shutdown::Write) {
        progress.note(End::Reset, format!("shutdown: {error}"));
    }
}

fn receive_all(stream: &TcpStream, mut incoming: Incoming, common: &Common, progress: &Progress) {
    let mut random = calls::order(!progress.seed, common.seed);
    let mut buffer = vec![0; usize::try_from(common.max_chunk).unwrap_or(1 << 16)];
    loop {
        match calls::receive(stream.as_fd(), &mut buffer, &mut random) {
            Ok(Received::Bytes(0)) => return incoming.ended(progress),
            Ok(Received::Bytes(count)) => {
                if !incoming.received(&buffer[..count], progress) {
                    return stop(stream);
                }
            }
            Ok(Received::PeekDiffers) => {
                progress.note(End::Wrong, "MSG_PEEK showed other bytes".to_owned());
                return stop(stream);
            }
            Err(Errno::EINTR) => {}
            Err(error) => return progress.note(End::Reset, format!("receive: {error}")),
        }
    }
}

/// Lets the sending thread see that all is over.
fn stop(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}
