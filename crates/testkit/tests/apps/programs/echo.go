// Echoes frames as echo.py does: `echo server|client PORT`. Go makes system calls without the C library.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand"
	"net"
	"os"
)

const frames = 150
const connections = 4

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func encode(payload []byte) []byte {
	frame := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint32(frame, uint32(len(payload)))
	binary.BigEndian.PutUint32(frame[4:], crc32.ChecksumIEEE(payload))
	return append(frame, payload...)
}

// Reads the next frame; io.EOF at the end of the stream.
func decode(reader io.Reader) ([]byte, error) {
	header := make([]byte, 8)
	if _, err := io.ReadFull(reader, header); err != nil {
		return nil, err
	}
	payload := make([]byte, binary.BigEndian.Uint32(header))
	if _, err := io.ReadFull(reader, payload); err != nil {
		return nil, fmt.Errorf("a frame is cut short: %v", err)
	}
	if crc32.ChecksumIEEE(payload) != binary.BigEndian.Uint32(header[4:]) {
		return nil, fmt.Errorf("a frame is damaged")
	}
	return payload, nil
}

func serve(connection net.Conn) {
	defer connection.Close()
	reader := bufio.NewReader(connection)
	for {
		payload, err := decode(reader)
		if err == io.EOF {
			return
		}
		if err != nil {
			fail(err)
		}
		if _, err := connection.Write(encode(payload)); err != nil {
			return
		}
	}
}

func call(address string, seed int64) error {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	numbers := rand.New(rand.NewSource(seed))
	sizes := []int{1, 20, 300, 5000, 70000, 300000}
	sent := make([][]byte, frames)
	for i := range sent {
		sent[i] = make([]byte, 1+numbers.Intn(sizes[numbers.Intn(len(sizes))]))
		numbers.Read(sent[i])
	}
	go func() {
		for _, payload := range sent {
			connection.Write(encode(payload))
		}
		connection.(*net.TCPConn).CloseWrite()
	}()
	reader := bufio.NewReader(connection)
	for i, payload := range sent {
		back, err := decode(reader)
		if err != nil {
			return fmt.Errorf("frame %d: %v", i, err)
		}
		if !bytes.Equal(back, payload) {
			return fmt.Errorf("frame %d came back wrong", i)
		}
	}
	if _, err := decode(reader); err != io.EOF {
		return fmt.Errorf("no end of file: %v", err)
	}
	return nil
}

func main() {
	address := "127.0.0.1:" + os.Args[2]
	if os.Args[1] == "server" {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			fail(err)
		}
		for {
			connection, err := listener.Accept()
			if err != nil {
				fail(err)
			}
			go serve(connection)
		}
	}
	results := make(chan error, connections)
	for seed := int64(0); seed < connections; seed++ {
		go func(seed int64) { results <- call(address, seed) }(seed)
	}
	for i := 0; i < connections; i++ {
		if err := <-results; err != nil {
			fail(err)
		}
	}
	fmt.Println("all messages came back")
}
