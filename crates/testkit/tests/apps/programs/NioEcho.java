import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Random;

/** {@code NioEcho server|client PORT [BYTES]}: a selector server that echoes, and clients that check every byte. */
public final class NioEcho {
    private static int total = 8_000_000;

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[1]);
        if (arguments.length > 2) {
            total = Integer.parseInt(arguments[2]);
        }
        if (arguments[0].equals("server")) {
            serve(port);
            return;
        }
        Thread[] threads = new Thread[3];
        Exception[] failures = new Exception[threads.length];
        for (int index = 0; index < threads.length; index++) {
            int seed = index;
            threads[index] = new Thread(() -> {
                try {
                    if (seed % 2 == 0) {
                        callBlocking(port, seed);
                    } else {
                        callSelecting(port, seed);
                    }
                } catch (Exception failure) {
                    failures[seed] = failure;
                }
            });
            threads[index].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        for (Exception failure : failures) {
            if (failure != null) {
                throw failure;
            }
        }
        System.out.println("all messages came back");
    }

    private static void serve(int port) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", port));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            var keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(100_000));
                } else {
                    echo(key);
                }
            }
        }
    }

    private static void echo(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        try {
            if (key.isReadable() && channel.read(buffer) < 0) {
                buffer.flip();
                key.cancel();
                channel.configureBlocking(true);
                while (buffer.hasRemaining()) {
                    channel.write(buffer);
                }
                channel.close();
                return;
            }
            buffer.flip();
            channel.write(buffer);
            buffer.compact();
            int interest = buffer.hasRemaining() ? SelectionKey.OP_READ : 0;
            key.interestOps(interest | (buffer.position() > 0 ? SelectionKey.OP_WRITE : 0));
        } catch (IOException failure) {
            key.cancel();
            channel.close();
        }
    }

    private static void callBlocking(int port, int seed) throws Exception {
        try (SocketChannel channel = SocketChannel.open(new InetSocketAddress("127.0.0.1", port))) {
            Thread sender = new Thread(() -> {
                Random bytes = new Random(seed);
                Random sizes = new Random(seed + 100);
                try {
                    for (int sent = 0; sent < total; ) {
                        ByteBuffer chunk = next(bytes, Math.min(1 + sizes.nextInt(50_000), total - sent));
                        sent += chunk.remaining();
                        while (chunk.hasRemaining()) {
                            channel.write(chunk);
                        }
                    }
                    channel.shutdownOutput();
                } catch (IOException failure) {
                    failure.printStackTrace();
                }
            });
            sender.start();
            Random expected = new Random(seed);
            ByteBuffer buffer = ByteBuffer.allocate(65_536);
            int received = 0;
            while (channel.read(buffer) >= 0) {
                received += check(buffer, expected);
            }
            sender.join();
            if (received != total) {
                throw new IOException(received + " bytes came back");
            }
        }
    }

    private static void callSelecting(int port, int seed) throws Exception {
        Selector selector = Selector.open();
        SocketChannel channel = SocketChannel.open();
        channel.configureBlocking(false);
        channel.connect(new InetSocketAddress("127.0.0.1", port));
        channel.register(selector, SelectionKey.OP_CONNECT);
        Random bytes = new Random(seed);
        Random expected = new Random(seed);
        ByteBuffer out = next(bytes, 10_000);
        ByteBuffer in = ByteBuffer.allocateDirect(30_000);
        int sent = out.remaining();
        int received = 0;
        while (true) {
            if (selector.select(20_000) == 0) {
                throw new IOException("nothing came for 20 seconds");
            }
            SelectionKey key = selector.selectedKeys().iterator().next();
            selector.selectedKeys().clear();
            if (key.isConnectable()) {
                channel.finishConnect();
                key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                continue;
            }
            if (key.isReadable()) {
                if (channel.read(in) < 0) {
                    break;
                }
                received += check(in, expected);
            }
            if (key.isWritable()) {
                channel.write(out);
                if (!out.hasRemaining()) {
                    if (sent == total) {
                        channel.shutdownOutput();
                        key.interestOps(SelectionKey.OP_READ);
                    } else {
                        out = next(bytes, Math.min(10_000, total - sent));
                        sent += out.remaining();
                    }
                }
            }
        }
        channel.close();
        if (received != total) {
            throw new IOException(received + " bytes came back");
        }
    }

    private static ByteBuffer next(Random bytes, int length) {
        ByteBuffer chunk = ByteBuffer.allocate(length);
        for (int index = 0; index < length; index++) {
            chunk.put((byte) bytes.nextInt());
        }
        return chunk.flip();
    }

    private static int check(ByteBuffer buffer, Random expected) throws IOException {
        buffer.flip();
        int count = buffer.remaining();
        while (buffer.hasRemaining()) {
            if (buffer.get() != (byte) expected.nextInt()) {
                throw new IOException("a byte came back wrong");
            }
        }
        buffer.clear();
        return count;
    }
}
