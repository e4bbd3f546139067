"""Agents that call a server of the test's own (OPENAI_BASE_URL) with one key, from real workers."""

from agentq import Agent

limited = Agent("limited", model="openai:m")
