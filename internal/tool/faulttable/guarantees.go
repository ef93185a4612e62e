package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A guarantee is a sentence of doc.go, and the tests that fail where it is false.
type guarantee struct {
	sentence string
	tests    []string
}

// guarantees are all sentences of doc.go's "What it guarantees", in their order and to the letter. Who changes one
// there reads its tests again: do they fail where the new sentence is false?
var guarantees = []guarantee{
	{
		"One queue per name, ordered by etcd's create revision.",
		[]string{"TestFault_E5_I2_OrderOfReadersAndWriters", "TestFault_C2_QueueThroughCompactionsAndResets", "TestMutex_SharesTheQueueWithConcurrencyAndRWMutex", "TestMulti_FairInEachQueue"},
	},
	{
		"Nobody passes anybody: no Try passes a waiter, no reader passes a writer, no goroutine passes another one of its session.",
		[]string{"TestFault_D2_TryLockBesideAWaiter", "TestFault_E5_I2_OrderOfReadersAndWriters", "TestFault_D1_D3_OneSessionManyGoroutines", "TestHandOver_OthersBetween", "TestHandOver_Try", "TestRelease_WithTheNextLockIsFair", "TestFault_J10_DowngradeWithoutReply", "TestInterleavings_I1_I3"},
	},
	{
		"No two exclusive entries in etcd, and no exclusive and shared entry, are entitled to the lock at the same revision.",
		[]string{"TestInterleavings_I1_I3", "TestModel_I1", "TestFault_E1_FirstWaiterRevoked", "TestMulti_ExcludesAllLocksOfItsNames", "TestFault_J2_RestoreToLowerRevisions", "TestFault_J6_CloneGrantsTheSameLease", "TestSoak", "TestRestore"},
	},
	{
		"A holder learns of its loss.",
		[]string{"TestFault_F3_RevokedByAnother", "TestFault_F5_KeyDeleted", "TestFault_F15_DoIsTold", "TestFault_F6_LiveLeaseRevoked", "TestFault_F7_RenewalConfirmedAfterRevoke", "TestFault_J11_UnlockSlowly"},
	},
	{
		"[Held.Context] ends before etcd can give the lock to somebody else because the lease was not renewed, and within 500 ms if somebody revokes the lease or deletes the entry.",
		[]string{"TestFault_F1_F2_DeadlineCountedFromSend", "TestFault_J1_OneReplyForSeveralRenewals", "TestFault_J1_OneReplyAfterTheFirstBreaks", "TestFault_F3_RevokedByAnother", "TestFault_F5_KeyDeleted"},
	},
	{
		"Both promises hold while the process runs, and its clock runs as fast as etcd's, give or take a tenth.",
		[]string{"TestInvariant_I4_Deadline", "TestFault_J17_SlowClock", "TestFault_F4_HolderPaused"},
	},
	{
		"When ctx ends, the call ends within milliseconds, whether etcd answers or not.",
		[]string{"TestFault_B1_CtxOnPartition", "TestFault_B1_HoldOnPartition", "TestFault_J12_LogBlocks", "TestFault_J12_HooksBlock", "TestFault_A1_CtxEndsInFlight"},
	},
	{
		"After an error of Lock, Try or Enqueue the caller holds nothing and owes nothing; what was left in etcd is removed in the background.",
		[]string{"TestFault_A1_CtxEndsInFlight", "TestFault_A3_TryLockLeavesNothing", "TestFault_A6_EveryExitRemovesTheEntry", "TestFault_J14_LateGrantIsRevoked", "TestFault_B8_NothingLeaks", "TestInterleavings_I1_I3"},
	},
	{
		"Leader changes, compaction, lost replies, and members that are stopped, hang or are cut off cost time and not the place in the queue.",
		[]string{"TestFault_F8_LeaderMovedEachSecond", "TestFault_C2_QueueThroughCompactionsAndResets", "TestFault_A1_LostAcquireReply", "TestFault_C1_IsolatedMember", "TestFault_C1_MembersComeBack", "TestFault_F12_HandOverBesideAPausedMember"},
	},
}

var (
	section  = regexp.MustCompile(`(?s)\n// # What it guarantees\n(.*?)\n// # `)
	sentence = regexp.MustCompile(`[^.]+(?:\.\w[^.]*)*\.(?: |$)`) // [Held.Context] has a period too
)

// sentences returns the sentences of that section of doc.go.
func sentences(doc string) (all []string) {
	m := section.FindStringSubmatch(doc)
	if m == nil {
		return nil
	}
	text := strings.ReplaceAll(m[1], "\n//   - ", "\n// ")
	text = strings.Join(strings.Fields(strings.ReplaceAll("\n"+text, "\n//", " ")), " ")
	for _, s := range sentence.FindAllString(text, -1) {
		all = append(all, strings.TrimSpace(s))
	}
	return all
}

// checkGuarantees returns an error if guarantees are not the sentences of doc.go in dir, or name a test that is none of names.
func checkGuarantees(dir string, names []string) error {
	doc, err := os.ReadFile(filepath.Join(dir, "doc.go"))
	if err != nil {
		return err
	}
	said := sentences(string(doc))
	for i := range max(len(said), len(guarantees)) {
		switch {
		case i >= len(said):
			return fmt.Errorf("doc.go does not guarantee: %q", guarantees[i].sentence)
		case i >= len(guarantees) || guarantees[i].sentence != said[i]:
			return fmt.Errorf("doc.go guarantees what internal/tool/faulttable/guarantees.go does not have in this place: %q", said[i])
		case len(guarantees[i].tests) == 0:
			return fmt.Errorf("no test is named for: %q", said[i])
		}
		for _, t := range guarantees[i].tests {
			if !slices.Contains(names, t) {
				return fmt.Errorf("there is no %s, which is named for: %q", t, said[i])
			}
		}
	}
	return nil
}

// guarding are the tests that guarantees names.
func guarding() (names []string) {
	for _, g := range guarantees {
		names = append(names, g.tests...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// renderGuarantees returns the table, or an error if one of its tests has not passed in this run.
func renderGuarantees(tests []*result) (string, error) {
	var b strings.Builder
	b.WriteString(`
## What is guaranteed

Each sentence of "What it guarantees" in doc.go, and tests that fail where it is false. They passed in this run.

| sentence | tests |
|---|---|
`)
	for _, g := range guarantees {
		var names []string
		for _, name := range g.tests {
			if !slices.ContainsFunc(tests, func(r *result) bool { return r.name == name && r.passed }) {
				return "", fmt.Errorf("%s, which is named for %q, has not passed in this run", name, g.sentence)
			}
			names = append(names, "`"+name+"`")
		}
		fmt.Fprintf(&b, "| %s | %s |\n", g.sentence, strings.Join(names, ", "))
	}
	return b.String(), nil
}
