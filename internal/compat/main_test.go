//go:build unix

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPortable(t *testing.T) {
	names, err := portable("../..")
	require.NoError(t, err)
	require.IsIncreasing(t, names)
	for _, name := range []string{
		"TestSmoke",
		"TestFault_F4_HolderPaused",            // by a helper process that uses it
		"TestFault_F1_DeadlineCountedFromSend", // by functions of functions
		"TestFault_C7_DelayedEvents",           // has variables named as functions that start
		"TestRequests_Uncontended", "TestFault_D6_Guards",
	} {
		require.Contains(t, names, name)
	}
	for _, name := range []string{
		"TestFault_C1_IsolatedMember", // starts a cluster
		"TestFault_F13_RolesChange",   // by a function
		"TestFault_F12_MemberPaused",  // processes
		"TestKeyGrammar",              // needs none
		"TestInterleavings_I1_I3",     // nor this
		"TestControl_A2_StaleUnlock", "TestMain",
	} {
		require.NotContains(t, names, name)
	}
}

func TestSuited(t *testing.T) {
	names := []string{"TestFault_F1_It", "TestFault_F15_It", "TestRequests_It", "TestSmoke"}
	require.Equal(t, names, suited(names, 1))
	require.Equal(t, []string{"TestFault_F15_It", "TestSmoke"}, suited(names, 3))
}
