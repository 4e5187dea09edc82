/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Messages between two ranks by MPI_Send and MPI_Recv, as `viaduct bench latency` and `bandwidth` do over other roads. The benchmark
 * compiles it where mpicc is installed.
 *
 *     mpirun -np 2 PROGRAM latency|bandwidth SIZE:ROUNDS...
 *
 * Prints a line a size: what the rounds took, and the processor time of both ranks. An eighth as many before are not measured.
 */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARM_UP = 8 };

static double seconds(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void transmit(void *bytes, int count, int to)
{
	MPI_Send(bytes, count, MPI_BYTE, to, 0, MPI_COMM_WORLD);
}

static void receive(void *bytes, int count, int from)
{
	MPI_Recv(bytes, count, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* This rank's part of so many rounds. */
static void work(int rank, int latency, char *bytes, int size, unsigned long rounds)
{
	int other = !rank;
	for (unsigned long round = 0; round < rounds; round++) {
		if (rank == 0)
			transmit(bytes, size, other);
		else
			receive(bytes, size, other);
		if (latency && rank == 0)
			receive(bytes, size, other);
		else if (latency)
			transmit(bytes, size, other);
	}
	if (latency)
		return;
	if (rank == 0)
		receive(bytes, 1, other);
	else
		transmit(bytes, 1, other);
}

int main(int count, char **arguments)
{
	int rank, ranks;
	MPI_Init(&count, &arguments);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks != 2 || count < 3)
		MPI_Abort(MPI_COMM_WORLD, 2);
	int latency = strcmp(arguments[1], "latency") == 0;
	for (int at = 2; at < count; at++) {
		char *rest;
		int size = (int)strtol(arguments[at], &rest, 10);
		unsigned long rounds = *rest == ':' ? strtoul(rest + 1, NULL, 10) : 0;
		char *bytes = size > 0 ? calloc((size_t)size, 1) : NULL;
		if (!bytes || !rounds)
			MPI_Abort(MPI_COMM_WORLD, 2);
		work(rank, latency, bytes, size, rounds / WARM_UP);
		MPI_Barrier(MPI_COMM_WORLD);
		double start = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
		work(rank, latency, bytes, size, rounds);
		double took = seconds(CLOCK_MONOTONIC) - start, serving = 0;
		cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
		if (rank == 0) {
			MPI_Recv(&serving, 1, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			printf("{\"size\": %d, \"rounds\": %lu, \"seconds\": %.9f, "
			       "\"asking_cpu_s\": %.9f, \"serving_cpu_s\": %.9f}\n",
			       size, rounds, took, cpu, serving);
			fflush(stdout);
		} else {
			MPI_Send(&cpu, 1, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
		}
		free(bytes);
	}
	MPI_Finalize();
	return 0;
}
