/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Messages between two ranks by MPI_Send and MPI_Recv, as `viaduct bench latency` and `bandwidth` do over other roads.
 * The benchmark compiles it where mpicc is installed.
 *
 * mpirun -np 2 PROGRAM latency|bandwidth MILLISECONDS SIZE...
 *
 * Prints a line a size: what the rounds that fill the time took, and the processor time of both ranks. Trials of
 * growing length come before. */
#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

/* Does as many rounds as the first rank says, and tells what they took and cost this rank. */
static unsigned long batch(int rank, int latency, char *bytes, int size, unsigned long rounds, double *took, double *cpu)
{
	MPI_Bcast(&rounds, 1, MPI_UNSIGNED_LONG, 0, MPI_COMM_WORLD);
	double start = seconds(CLOCK_MONOTONIC), before = seconds(CLOCK_PROCESS_CPUTIME_ID);
	work(rank, latency, bytes, size, rounds);
	*took = seconds(CLOCK_MONOTONIC) - start;
	*cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
	return rounds;
}

int main(int count, char **arguments)
{
	int rank, ranks;
	MPI_Init(&count, &arguments);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks != 2 || count < 4)
		MPI_Abort(MPI_COMM_WORLD, 2);
	int latency = strcmp(arguments[1], "latency") == 0;
	double wanted = atof(arguments[2]) * 1e-3;
	for (int at = 3; at < count; at++) {
		int size = atoi(arguments[at]);
		char *bytes = size > 0 ? calloc((size_t)size, 1) : NULL;
		if (!bytes)
			MPI_Abort(MPI_COMM_WORLD, 2);
		double took, cpu, serving = 0;
		unsigned long rounds = 16;
		int enough;
		do {
			rounds = batch(rank, latency, bytes, size, rounds, &took, &cpu);
			enough = took >= wanted / 8;
			MPI_Bcast(&enough, 1, MPI_INT, 0, MPI_COMM_WORLD);
			rounds = enough ? (unsigned long)((double)rounds * wanted / took) : rounds * 4;
		} while (!enough);
		rounds = batch(rank, latency, bytes, size, rounds > 4 ? rounds : 4, &took, &cpu);
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
