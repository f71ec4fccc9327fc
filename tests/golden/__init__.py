"""What the product answered before it was rebuilt, in small files, and a test that it still does.

    answers.py       how the product is asked: the one file to change when a name moves
    cases.py         what is asked: every case with its numbers of rows
    files.py         how answers are written down, read back and compared
    record.py        writes them anew: ``python -m tests.golden.record [NAME…]``
    test_golden.py   asks again and compares
    data/            the answers

Names, roles, statuses, counts and texts must be the same; numbers to a millionth
(:data:`tests.golden.files.RELATIVE`). An answer that is meant to change is recorded anew, and the
reason is written into ``docs/decisions.md``.
"""
