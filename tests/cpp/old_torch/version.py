__version__ = '2.10.1+cpu'
cuda = None
