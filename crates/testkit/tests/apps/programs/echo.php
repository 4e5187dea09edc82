<?php
/* Echoes frames of random sizes with checksums: `echo.php server|client streams|sockets PORT`, by PHP's own streams or by its extension
 * `sockets`. The server waits for all its connections at once, as frameworks for PHP do, and sends back what comes; the client keeps
 * several frames on their way and checks what returns. */

const FRAMES = 150;
const SIZES = [1, 20, 300, 5000, 70000, 300000];
const PIECE = 65536;

set_time_limit(60);
set_error_handler(function ($number, $text) {
    /* A full or an empty socket is no error. */
    if (error_reporting() !== 0 && !str_contains($text, 'temporarily unavailable')) {
        fwrite(STDERR, "$text\n");
        exit(1);
    }
    return true;
});

/* What both ways offer. */
abstract class Way
{
    abstract public function listen(int $port);
    abstract public function accept($listener);
    abstract public function connect(int $port);
    abstract public function select(?array &$read, ?array &$write): void;
    /* What is there; '' for nothing, null at the end. */
    abstract public function receive($connection): ?string;
    abstract public function send($connection, string $bytes): int;
}

class Streams extends Way
{
    public function listen(int $port) { return stream_socket_server("tcp://127.0.0.1:$port"); }
    public function accept($listener) { return $this->plain(stream_socket_accept($listener)); }
    public function connect(int $port) { return $this->plain(stream_socket_client("tcp://127.0.0.1:$port")); }
    public function select(?array &$read, ?array &$write): void
    {
        $except = null;
        stream_select($read, $write, $except, 20) > 0 || exit("nothing came\n");
    }
    public function receive($connection): ?string
    {
        $bytes = fread($connection, PIECE);
        return $bytes === '' && feof($connection) ? null : $bytes;
    }
    public function send($connection, string $bytes): int { return (int)fwrite($connection, $bytes); }
    private function plain($connection)
    {
        stream_set_blocking($connection, false);
        stream_set_read_buffer($connection, 0);
        return $connection;
    }
}

class Sockets extends Way
{
    public function listen(int $port) { return socket_create_listen($port); }
    public function accept($listener) { return $this->plain(socket_accept($listener)); }
    public function connect(int $port)
    {
        $connection = socket_create(AF_INET, SOCK_STREAM, SOL_TCP);
        socket_connect($connection, '127.0.0.1', $port);
        return $this->plain($connection);
    }
    public function select(?array &$read, ?array &$write): void
    {
        $except = null;
        socket_select($read, $write, $except, 20) > 0 || exit("nothing came\n");
    }
    public function receive($connection): ?string
    {
        $got = socket_recv($connection, $bytes, PIECE, 0);
        return $got === 0 ? null : (string)$bytes;
    }
    public function send($connection, string $bytes): int { return (int)socket_write($connection, $bytes); }
    private function plain($connection)
    {
        socket_set_nonblock($connection);
        return $connection;
    }
}

function serve(Way $way, int $port): void
{
    $listener = $way->listen($port);
    $connections = [];
    $waiting = [];
    while (true) {
        $read = [-1 => $listener] + $connections;
        $write = array_intersect_key($connections, array_filter($waiting, 'strlen'));
        $way->select($read, $write);
        foreach ($read as $key => $end) {
            if ($key === -1) {
                $connections[] = $way->accept($listener);
                $waiting[] = '';
                continue;
            }
            $bytes = $way->receive($end);
            if ($bytes === null) {
                unset($connections[$key], $waiting[$key]);
                continue;
            }
            $waiting[$key] .= $bytes;
            $write[$key] = $end;
        }
        foreach ($write as $key => $end) {
            if (isset($waiting[$key]) && $waiting[$key] !== '') {
                $waiting[$key] = substr($waiting[$key], $way->send($end, $waiting[$key]));
            }
        }
    }
}

function ask(Way $way, int $port): void
{
    $connection = $way->connect($port);
    mt_srand(7);
    [$sent, $back, $out, $in] = [0, 0, '', ''];
    while ($back < FRAMES) {
        if ($sent < FRAMES && strlen($out) < PIECE) {
            $payload = random_bytes(mt_rand(1, SIZES[array_rand(SIZES)]));
            $out .= pack('NN', strlen($payload), crc32($payload)) . $payload;
            $sent++;
        }
        $read = [$connection];
        $write = $out === '' ? null : [$connection];
        $way->select($read, $write);
        if ($write) {
            $out = substr($out, $way->send($connection, $out));
        }
        if ($read) {
            $bytes = $way->receive($connection);
            $bytes === null && exit("the server has gone\n");
            $in .= $bytes;
        }
        while (strlen($in) >= 8 && strlen($in) >= 8 + ($frame = unpack('Nlength/Ncrc', $in))['length']) {
            crc32(substr($in, 8, $frame['length'])) === $frame['crc'] || exit("a frame is damaged\n");
            $in = substr($in, 8 + $frame['length']);
            $back++;
        }
    }
    echo "all messages came back\n";
}

[, $role, $how, $port] = $argv;
$way = $how === 'streams' ? new Streams() : new Sockets();
$role === 'server' ? serve($way, (int)$port) : ask($way, (int)$port);
